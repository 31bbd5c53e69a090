"""The examples of docs/jax.md and of `toktier.jax` are what happens."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import toktier.jax

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "jax.md"


def test_the_guide_is_what_happens() -> None:
    result = doctest.testfile(str(GUIDE), module_relative=False, encoding="utf-8")
    assert result.attempted >= 12
    assert result.failed == 0


@pytest.mark.parametrize("name", ["encode", "pack", "parts", "spans", "text"])
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"toktier.jax.{name}"))
    assert result.attempted > 1
    assert result.failed == 0


def test_the_guide_knows_every_reason_and_name() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert [r.name for r in toktier.jax.Reason if f"| `{r.name}` |" not in text] == ["OK"]
    for name in (
        "batch",
        "plan",
        "fallback",
        "pack",
        "truncate",
        "span_mask",
        "part_ids",
        "take",
        "trace_count",
        "tables",
    ):
        assert f"{name}" in text


def test_import_toktier_leaves_jax_alone_and_jax_is_jax() -> None:
    code = "import sys, toktier; assert 'jax' not in sys.modules and 'toktier.jax' not in sys.modules;"
    code += "import toktier.jax, jax; assert jax is not toktier.jax and jax.jit; print(jax.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
