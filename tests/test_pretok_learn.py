"""Pre-tokenizers never seen before: learned, proven, equal to the reference on all short texts over their symbols."""

import functools
import itertools
import json
import random

import numpy as np
import pytest

from toktier.pretok import host_scan, twin
from toktier.pretok.assemble import assemble, transition_monoid
from toktier.pretok.blackbox import open_blackbox, pieces_of
from toktier.pretok.build import build
from toktier.pretok.failure import LearnError
from toktier.pretok.form import parse
from toktier.pretok.learn import Bimachine, learn
from toktier.pretok.written import spelled


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


DIGITS = {"type": "Digits", "individual_digits": False}
CASES = {
    "null": ("tokenizers", None),
    "removed": ("tokenizers", split({"Regex": r"\s+"}, "Removed")),
    "inverted": ("tokenizers", split({"Regex": r"[a-z]+|\d{1,3}"}, "Removed", True)),
    "with_previous": ("tokenizers", split({"String": ", "}, "MergedWithPrevious")),
    "with_next": (
        "tokenizers",
        sequence(split({"Regex": r"\p{P}"}, "Contiguous"), split({"Regex": r"[.!]"}, "MergedWithNext")),
    ),
    "words_dropping_spaces": ("tokenizers", sequence({"type": "Whitespace"}, DIGITS)),
    "literal": ("tokenizers", split({"String": "<dummy-prefix!>"})),
    "look_behind": ("tokenizers", split({"Regex": r"(?<=[A-Z])\d|a(?=\s*$)|\w\b"})),
    "look_ahead": ("tokenizers", sequence(DIGITS, split({"Regex": r"'s| ?[a-z]++|\s+(?=\s|\z)|[^\sa-z]+|\s"}))),
    "dropping_ranks": ("tiktoken", {"type": "tiktoken", "pattern": r"[a-z]+| \d{2}|(?i:k)x"}),
}


@functools.cache
def built_of(name):
    reference, config = CASES[name]
    return build(parse(json.dumps(config))[0], reference)


@pytest.fixture(params=list(CASES))
def learned(request):
    reference, config = CASES[request.param]
    return json.dumps(config), reference, built_of(request.param)


def test_equal_to_the_reference_on_all_short_texts(learned):
    text, reference, built = learned
    tables = assemble(built.core)
    box = open_blackbox(parse(text)[0], reference)
    length = next(n for n in (6, 5, 4, 3) if tables.n_symbols**n < 20000)
    points = np.array([ord(c) for c in tables.representatives], np.uint32)
    texts = points[np.array(list(itertools.product(range(tables.n_symbols), repeat=length)))]
    for row, marks in zip(texts, box.marks(texts, built.machine.marks(_symbols(tables, texts))), strict=True):
        want = [s for s, _ in pieces_of(marks)]
        data = row.tobytes().decode("utf-32-le").encode()
        heads = [i for i, b in enumerate(data) if b & 0xC0 != 0x80]
        starts, _ = host_scan.piece_bounds(tables, np.frombuffer(data, np.uint8))
        assert starts.tolist() == [heads[i] for i in want]


def _symbols(tables, points):
    return tables.symbol[tables.block[points >> 8].astype(np.int64) * 256 + (points & 255)]


def test_twin_and_host_agree(learned):
    _, _, built = learned
    tables = assemble(built.core)
    rng = np.random.default_rng(0)
    letters = [*tables.representatives, "\xff", "é", "²", "中", "😀", "K", "a"]
    for _ in range(60):
        chosen = rng.choice(len(letters), 1 + rng.integers(1, 5))
        text = [letters[i] for i in rng.choice(chosen, rng.integers(0, 60))]
        data = b"".join(b"\xff" if c == "\xff" else c.encode() for c in text)
        starts, ends = host_scan.piece_bounds(tables, np.frombuffer(data, np.uint8))
        assert (starts.tolist(), ends.tolist()) == twin.piece_bounds(tables, data)


def test_a_pattern_for_short_texts_cuts_as_the_automata_do(learned):
    text, _, built = learned
    tables = assemble(built.core)
    assert bool(tables.written) == (text == json.dumps(CASES["look_ahead"][1]))
    if not tables.written:
        return
    find = spelled(tables.written, tables).findall
    rng = random.Random(1)
    for _ in range(300):
        data = "".join(rng.choices("ab's  \t\n12.,\x00", k=rng.randint(0, 20)))
        starts, ends = twin.piece_bounds(tables, data.encode())
        assert find(data) == [data[i:j] for i, j in zip(starts, ends, strict=True)]


def test_case_folding_is_the_engines():
    tables = assemble(built_of("dropping_ranks").core)
    assert twin.piece_bounds(tables, "\u212ax")[0] == [0]  # the Kelvin sign folds to k
    assert twin.piece_bounds(tables, "Ax")[0] == [1]


def test_an_automaton_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("toktier.pretok.learn.MAX_STATES", 9)

    def ask(words):  # a START after the middle: no finite automaton
        return [bytes(i == len(w) // 2 for i in range(len(w))) for w in words]

    def wrong(machine: Bimachine):
        longest = bytes(2 * len(machine.left_words) + 9)
        words = [bytes(n) for n in range(len(longest))]
        return [w for w, truth in zip(words, ask(words), strict=True) if machine.marks_of(w) != truth][:4]

    with pytest.raises(LearnError, match="more than 9 left states"):
        learn(ask, 1, wrong)


def test_too_large_a_monoid_is_refused():
    cycle = np.roll(np.arange(9), 1)
    swap = np.arange(9)
    swap[:2] = 1, 0
    with pytest.raises(LearnError, match="4096"):
        transition_monoid(np.stack([cycle, swap], axis=1).astype(np.uint8))  # all permutations of nine states


@pytest.mark.parametrize(
    "config",
    [
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
        {"type": "UnicodeScripts"},
        split({"Regex": r"(a)\1"}),
    ],
)
def test_what_cannot_be_learned_says_why(config):
    with pytest.raises(LearnError, match=r"pretokenizer|pattern"):
        build(parse(json.dumps(config))[0], "tokenizers")
