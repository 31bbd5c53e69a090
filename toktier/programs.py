"""The device program for each shape of tables and buffer: traced once a machine, compiled once a process.

XLA's own cache on disk saves the compilation, but JAX has to trace the program to know what to ask for: three to four
seconds of Python.  So what tracing made (StableHLO, `jax.export`, 250 KB) is kept beside the tables, under a key that
holds the versions and the source of all that could change it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.resources
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from toktier import cache, program
from toktier.locks import MakingLock

_KIND = "program-1"
_FOLDERS = (".", "bpe", "pretok")  # where the modules are that are traced

Run = Callable[[program.DeviceTables, jax.Array], Any]

_made: dict[tuple[Any, ...], Run] = {}
_lock = MakingLock()


def compiler_options(backend: str) -> dict[str, str | bool]:
    """How the program is compiled for a backend.

    A CPU runs several launches side by side, each on one core.  XLA would part each kernel among all cores as well,
    and wait for them; with two launches on two cores that makes each 10 to 20 % slower.
    """
    return {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"} if backend == "cpu" else {}


def encode(tables: program.DeviceTables, data: jax.Array, tiles: program.Tiles, joined: bool) -> Any:
    """`program.encode`; with `joined` its results lie in one array, so that one transfer brings them."""
    ids, ends, count = program.encode(tables, data, tiles)
    return jnp.concatenate([count[None], ids, ends]) if joined else (ids, ends, count)


@functools.cache
def jitted(backend: str) -> Any:
    """`encode` jitted for a backend, its last two arguments static; traced anew in each process."""
    return jax.jit(encode, static_argnames=("tiles", "joined"), compiler_options=compiler_options(backend))


def shapes_of(tables: program.DeviceTables) -> tuple[Any, ...]:
    """Shape and dtype of every array: tables of equal ones share a program."""
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(tables))


def program_for(tables: program.DeviceTables, capacity: int, tiles: program.Tiles, backend: str) -> Run:
    """The program for tables of these shapes and buffers of `capacity` bytes, joined where transfers cost.

    Args:
      tables: arrays on the device.
    """
    key = backend, capacity, tiles, shapes_of(tables)
    with _lock:
        if key not in _made:
            _made[key] = _brought_back(tables, key) or _traced(tables, key)
        return _made[key]


def count() -> int:
    """How many programs this process has: one for each shape of tables and buffer."""
    return len(_made)


def _traced(tables: program.DeviceTables, key: tuple[Any, ...]) -> Run:
    backend, capacity, tiles, _ = key
    joined = backend != "cpu"
    tree = jax.tree.structure(tables)

    def of_leaves(leaves: list[jax.Array], data: jax.Array) -> Any:
        return encode(jax.tree.unflatten(tree, leaves), data, tiles, joined)

    from jax import export

    data = jax.ShapeDtypeStruct((capacity,), jnp.uint8)
    try:
        exported = export.export(jax.jit(of_leaves))(jax.tree.leaves(tables), data)
    except (ValueError, NotImplementedError):  # a backend whose kernels cannot be exported: each process traces
        run = jitted(backend)
        return lambda tables, data: run(tables, data, tiles, joined)
    with contextlib.suppress(ImportError):  # no flatbuffers: it is not kept
        cache.put(_KIND, _name(key), {"program": np.frombuffer(exported.serialize(), np.uint8)})
    return _callable(exported, backend)


def _brought_back(tables: program.DeviceTables, key: tuple[Any, ...]) -> Run | None:
    """The program as it was traced before, if it is on disk and JAX still reads it."""
    entry = cache.get(_KIND, _name(key))
    if entry is None:
        return None
    try:
        from jax import export

        return _callable(export.deserialize(bytearray(entry["program"].tobytes())), key[0])
    except Exception:  # whatever a reader of another version says of it: it is traced anew
        return None


def _callable(exported: Any, backend: str) -> Run:
    run = jax.jit(exported.call, compiler_options=compiler_options(backend))
    return lambda tables, data: run(jax.tree.leaves(tables), data)


def _name(key: tuple[Any, ...]) -> str:
    import jaxlib

    backend, capacity, tiles, shapes = key
    wide = bool(jax.config.read("jax_enable_x64"))
    parts = [jax.__version__, jaxlib.__version__, _source(), wide, backend, capacity, tiles, shapes]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@functools.cache
def _source() -> str:
    """sha256 (hex) of the modules that may be traced."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        files = importlib.resources.files("toktier").joinpath(folder).iterdir()
        for file in sorted((f for f in files if f.name.endswith(".py")), key=lambda f: f.name):
            digest.update(f"{folder}/{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()
