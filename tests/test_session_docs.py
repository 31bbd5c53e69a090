"""docs/sessions.md: its examples are what happens."""

from __future__ import annotations

import doctest
import itertools
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs" / "sessions.md"


def test_the_examples_are_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(DOCS), module_relative=False, encoding="utf-8")
    assert result.attempted >= 25
    assert result.failed == 0
    assert (tmp_path / "sessions.db").is_file()


def test_what_does_not_run_is_called_a_fragment():
    before = re.split(r"^```python\n", DOCS.read_text(encoding="utf-8"), flags=re.M)
    for text, block in itertools.pairwise(before):
        paragraph = text.rstrip().rpartition("\n\n")[2]
        assert block.startswith(">>> ") or "fragment" in paragraph, block[:80]
