"""The pattern for short texts: derived, proven against the automata, equal to the twin."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from toktier.certify.machine import bimachine
from toktier.pretok import store, twin, written
from toktier.pretok.form import parse
from toktier.pretok.generate import families
from toktier.pretok.verify import Plan

WITHOUT = {"falcon", "deepseek_coder", "deepseek_llm"}  # these cut inside characters, or mix runs of several classes
WIDE = "éßıſ\u00a0\u2003\u3000—。，中文字かな한글กิ่हि\u0301\u0302\u200d\ufeff\uffff\u0378²Ⅷ٣ǅʰ"
ALPHABET = "aabdelLmrsStTvVE'''  \t\n\r\n\x0b\x0c\x1c\x1f\x00\x7f0123456789.,;-_=#/<|>(){}"


def tables_of(name):
    reference, pretokenizer = families()[name]
    return store.load_tables(pretokenizer, reference), parse(pretokenizer)[0]


def pieces(tables, text):
    data = text.encode()
    starts, ends = twin.piece_bounds(tables, data)
    return [data[i:j].decode() for i, j in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("name", families())
def test_stored_patterns_are_what_is_derived_and_cut_as_the_automata_do(name):
    tables, form = tables_of(name)
    assert tables.written == written.derive(form, tables)
    assert bool(tables.written) == (name not in WITHOUT)
    if not tables.written:
        return
    ascii_only, wide = (written.spelled(tables.written, tables, below).findall for below in (128, written.BMP))
    rng = random.Random(name)
    for _ in range(300):
        text = "".join(rng.choices(ALPHABET, k=rng.randint(0, 25)))
        assert ascii_only(text) == wide(text) == pieces(tables, text), text
        text = "".join(rng.choices(WIDE + ALPHABET, k=rng.randint(0, 25)))
        assert wide(text) == pieces(tables, text), text


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "deepseek_v3", "starcoder", "r50k_base"])
def test_the_proof_holds_and_a_changed_pattern_fails_it(name):
    tables, _ = tables_of(name)
    machine, plan = bimachine(tables), Plan(1, 1, 0)
    assert written.counterexamples(tables.written, tables, machine, plan) == []
    head, tail = tables.written.rsplit("]+(?!", 1)
    longest = max(re.findall(r"\[[^]]+\]", tables.written), key=len)
    changed = [f"{head}]+(?={tail}", f"{head}](?!{tail}", tables.written.replace(longest, longest[:-2] + "]")]
    for pattern in changed:
        assert pattern != tables.written
        assert written.counterexamples(pattern, tables, machine, plan), pattern


def test_groups_that_capture_change_no_piece():
    """Of a pattern with one `findall` gives what the group matched, of one with two a tuple."""
    for pattern in (r"(?:[a-z]+)|(\s)+|[^a-z\s]+", r"('s|'t)|([a-z]+)|[^a-z]"):
        tables = store.load_tables(json.dumps({"type": "tiktoken", "pattern": pattern}), "tiktoken")
        text = "it's  a test, isn't it? 123\n "
        assert written.spelled(tables.written, tables, 128).findall(text) == pieces(tables, text)


def test_no_pattern_where_it_would_be_another_splitter():
    tables, _ = tables_of("gpt2")
    isolated = {"type": "Split", "behavior": "Isolated", "invert": False}
    for form in (
        None,
        {"type": "tiktoken", "pattern": r"\b\w+|\W"},  # looks at more than symbols
        [{"type": "Whitespace"}],
        [isolated | {"pattern": {"String": "ab"}}],
        [isolated | {"behavior": "MergedWithNext", "pattern": {"Regex": "a+"}}],
        [isolated | {"pattern": {"Regex": "ab"}}, {"type": "ByteLevel", "use_regex": True}],
        [isolated | {"pattern": {"Regex": r"\p{N}{1,3}"}}, {"type": "ByteLevel", "use_regex": True}],
    ):
        assert written.derive(form, tables) == ""


def test_marks_of_the_empty_word():
    assert written._Box(lambda text: []).marks(np.zeros((2, 0), np.uint32)).shape == (2, 0)
