"""What the device program compiles to: few kernels, bounded loops, no way back to the host inside."""

from __future__ import annotations

import collections
import re

import families
import jax
import jax.numpy as jnp
import pytest

import toktier
from toktier import device, kernels, programs

CAPACITY = 1 << 14
# Recorded for jaxlib 0.10.2 on a CPU; a change that needs more kernels or loops says so here.
KERNELS, LOOPS, BRANCHES = 1350, 46, 60  # of the branches, thirty or so are fences (toktier/fence.py), on a CPU only
SLACK = 1.1
# For a GPU the program can be lowered without one, though not compiled.
GPU_LOOPS = 28


@pytest.fixture(scope="module")
def tables() -> object:
    return toktier.load(families.tokenizer("llama3")).core.device.tables


def test_kernels_loops_and_branches_stay_few(tables: object) -> None:
    data = jax.ShapeDtypeStruct((CAPACITY,), jnp.uint8)
    compiled = programs.jitted("cpu").lower(tables, data, device.tiles_for(CAPACITY, "cpu"), False).compile()
    found = kernels.count(compiled.as_text())
    assert found.kernels <= KERNELS * SLACK, found
    assert found.loops <= LOOPS * SLACK, found
    assert found.branches <= BRANCHES * SLACK, found
    assert not {"custom-call", "sort", "infeed", "outfeed", "send", "recv"} & set(found.by_kind), found


def test_nothing_leaves_a_gpu_before_the_end(tables: object) -> None:
    capacity = 1 << 20
    traced = programs.jitted("gpu").trace(
        tables, jax.ShapeDtypeStruct((capacity,), jnp.uint8), tiles=device.tiles_for(capacity, "gpu"), joined=True
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    used = collections.Counter(re.findall(r"\bstablehlo\.([a-z_]+)", text))
    assert 0 < used["while"] <= GPU_LOOPS
    assert not {"custom_call", "sort", "infeed", "outfeed", "send", "recv"} & set(used)
    assert not re.search(r"x[fc](16|32|64)>", text)  # integers only


HLO = """HloModule jit_f

%fused (p: s32[4]) -> s32[4] {
  %p = s32[4]{0} parameter(0)
  ROOT %add.1 = s32[4]{0} add(%p, %p)
}

%body (t: (s32[4], s32[])) -> (s32[4], s32[]) {
  %t = (s32[4]{0}, s32[]) parameter(0)
  %x = s32[4]{0} get-tuple-element(%t), index=0
  %fusion = s32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %r = (s32[4]{0}, s32[]) tuple(%fusion, %x)
}

%cond (t: (s32[4], s32[])) -> pred[] {
  %t = (s32[4]{0}, s32[]) parameter(0)
  ROOT %c = pred[] compare(%t, %t), direction=LT
}

ENTRY %main (a: s32[4]) -> s32[4] {
  %a = s32[4]{0} parameter(0)
  %copy = s32[4]{0} copy(%a)
  %while = (s32[4]{0}, s32[]) while(%copy), condition=%cond, body=%body
  ROOT %out = s32[4]{0} get-tuple-element(%while), index=0
}
"""


def test_the_count_is_of_what_runs() -> None:
    assert kernels.count(HLO) == (3, 1, 0, {"copy": 1, "fusion": 1, "compare": 1})
    with pytest.raises(ValueError, match="ENTRY"):
        kernels.count("HloModule jit_f")


def test_a_real_program_is_counted() -> None:
    def f(x: jax.Array) -> jax.Array:
        x = jax.lax.fori_loop(0, 1000, lambda i, x: x * 2 + i, x)
        return jax.lax.cond(x[0] > 3, jnp.sort, lambda x: x + 1, x)

    found = kernels.count(jax.jit(f).lower(jnp.zeros(1000, jnp.int32)).compile().as_text())
    assert found.loops >= 1
    assert found.branches == 1
    assert 2 <= found.kernels <= 30
