"""What the benchmarks compare with is what it says: stored digests are those of these texts and of the reference."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def stored(request: pytest.FixtureRequest):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import _texts

        yield _texts
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize(("engine", "tokenizer"), [("host", "cl100k_base"), ("reference", "llama3")])
def test_digests_hold_on_this_machine(stored, engine: str, tokenizer: str) -> None:
    checked = list(stored.check(engine, large=False, wanted=[tokenizer]))
    assert len(checked) >= 10
    assert not [row for row in checked if row[2]]


def test_a_wrong_id_is_found(stored) -> None:
    right = stored.digest_of("a b", [1, 2, 3])
    assert right == stored.digest_of("a b", [1, 2, 3])
    assert right != stored.digest_of("a b", [1, 2, 4])
    assert right["text"] != stored.digest_of("a c", [1, 2, 3])["text"]
