"""NFC near the places where it acts is the reference's NFC of the whole text; so is every other normalizer."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from toktier import cache
from toktier.normalize import BOUNDARY, Normalizer, load, nfc

whole = tokenizers.normalizers.NFC().normalize_str
decompose = tokenizers.normalizers.NFD().normalize_str
EVERY = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Nothing is assigned behind U+323AF but tags, selectors and private use: there one in 61 is looked at in context.
MOST = [c for c in EVERY if c != "\n" and (c < "\U000323b0" or "\U000e0000" <= c < "\U000e0200" or ord(c) % 61 == 0)]
LOCAL = Normalizer({"type": "NFC"})


@pytest.fixture(scope="module")
def tables() -> nfc.Tables:
    return nfc.tables()


@pytest.fixture(scope="module")
def composites() -> list[tuple[str, str]]:
    """Every character that NFC leaves alone although it decomposes, with its decomposition; Hangul thinned out."""
    found = []
    for block in (EVERY[k : k + 4096] for k in range(0, len(EVERY), 4096)):
        clean = [c for c in block if c != "\n"]
        for c, d, n in zip(
            clean, decompose("\n".join(clean)).split("\n"), whole("\n".join(clean)).split("\n"), strict=True
        ):
            if d != c == n and not ("\uac00" < c <= "\ud7a3" and ord(c) % 97):
                found.append((c, d))
    return found


def check(texts: list[str], tables: nfc.Tables) -> None:
    """Local NFC equals the reference's on each of the texts, joined by newlines, which nothing composes with."""
    text = "\n".join(texts)
    want = whole(text)
    got = tables.normalized(text)
    if got != want:
        for one in texts:
            assert tables.normalized(one) == whole(one), one.encode("unicode_escape")
    assert got == want
    if tables.unchanged(text):
        assert want == text


def test_packaged_tables_are_the_installed_references(tables: nfc.Tables) -> None:
    """The packaged table is what a fresh probe finds; where the reference is another version, the cache's is."""
    assert np.array_equal(tables.kind, nfc.probe())
    assert np.array_equal(nfc.unpack(*nfc.pack(tables.kind)), tables.kind)


def test_every_character_in_several_places(tables: nfc.Tables) -> None:
    for before, behind in (("", ""), ("e", "\u0301"), ("\u0345", "\u0334"), ("\u1100", "\u11a8"), ("\u0928", "\u093c")):
        check([before + c + behind for c in MOST], tables)


def test_apart_means_apart(tables: nfc.Tables) -> None:
    """No character of kind 0 acts on what stands before it: marks, letters and syllables of every kind in front."""
    apart = [c for c in MOST if tables.starts_apart(c)]
    fronts = [
        "a",
        "e\u0301",
        "\u1100",
        "\uac00",
        "\u0928",
        "\u09c7",
        "\u0b92",
        "\u1b05",
        "\U000110a5",
        "\u0345\u0334",
        "ᾳ",
    ]
    for front in fronts:
        normal = whole(front)
        assert whole("\n".join([front + c for c in apart])) == "\n".join([normal + c for c in apart])


def test_all_compositions(tables: nfc.Tables, composites: list[tuple[str, str]]) -> None:
    """Each composite, its decomposition, and each with marks below, at and above its own class in between."""
    marks = ["\u0334", "\u093c", "\u094d", "\u0323", "\u0301", "\u0315", "\u0345"]
    texts = []
    for composite, parts in composites:
        texts += [composite, parts, parts[::-1]]
        for mark in marks:
            texts += [parts[0] + mark + parts[1:], parts + mark, composite + mark, parts[:-1] + mark + parts[-1]]
    check(texts, tables)


def test_all_pairs_of_firsts_and_seconds(tables: nfc.Tables, composites: list[tuple[str, str]]) -> None:
    firsts = sorted({p[0] for _, p in composites} | {c for c, _ in composites if ord(c) < 0x3000})
    seconds = sorted({p[-1] for _, p in composites if not "\u1161" < p[-1] <= "\u11c2"})
    rng = random.Random(3)
    for second in seconds:
        check([first + second for first in rng.sample(firsts, min(300, len(firsts)))], tables)


def test_hangul(tables: nfc.Tables) -> None:
    lead, vowel, tail = "\u1100\u1112\u1113", "\u1161\u1175\u1176", "\u11a7\u11a8\u11c2\u11c3"
    syllables = "가각힣개"
    letters = lead + vowel + tail + syllables + "a\u0301"
    check(["".join(t) for n in range(1, 5) for t in itertools.product(letters, repeat=n)][:60000], tables)


def test_long_runs_of_marks(tables: nfc.Tables) -> None:
    """NFC looks back without bound."""
    rng = random.Random(7)
    marks = [chr(c) for c in np.flatnonzero(tables.kind) if c < 0x3000]
    texts = ["e" + "\u0315" * 400 + "\u0301", "\u0315" * 3000 + "\u0301", "x" + "\u0301" * 5000]
    texts += ["".join(rng.choices(marks, k=rng.randint(1, 200))) for _ in range(200)]
    check(texts, tables)


def test_stretches_at_the_edges_of_blocks(tables: nfc.Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(11)
    text = "".join(rng.choices("abc é\u0301\u0323e\u0345各가\u11a8\n", k=4000))
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr(nfc, "BLOCK", size)
        assert tables.normalized(text) == whole(text)
        assert not tables.unchanged(text)
        assert tables.unchanged("plain é 각 " * 9)


CHARS = "aeo é\u0301\u0323\u0345\u0334가\u1100\u1161\u11a8\u0928\u093c\u212b\u0344Aß\n\ufdd0"


@given(st.lists(st.text(CHARS, max_size=12), min_size=1, max_size=6))
def test_segments_are_normalized_apart(parts: list[str]) -> None:
    """Nothing combines across a boundary, sparse or dense."""
    for padding in ("", "x" * 200):
        segments = [padding + p + padding for p in parts]
        want = [whole(s).encode() if s else b"" for s in segments]
        assert LOCAL.buffer(BOUNDARY.join([s.encode() for s in segments])).split(BOUNDARY) == want
        if LOCAL.unchanged(segments):
            assert want == [s.encode() for s in segments]


def test_boundaries_in_a_text_with_all_noncharacters() -> None:
    """Even a text that leaves no stand-in for the boundary keeps its segments apart."""
    segments = ["".join(nfc._NONCHARACTERS), "e\u0301" * 50, "\u0301" * 50]
    got = LOCAL.buffer(BOUNDARY.join([s.encode() for s in segments])).split(BOUNDARY)
    assert got == [whole(s).encode() for s in segments]


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("null", "none"),
        ('{"type": "Sequence", "normalizers": []}', "none"),
        ('{"type": "NFC"}', "nfc"),
        ('{"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFC"}]}', "nfc"),
        ('{"type": "NFKC"}', "reference"),
        ('{"type": "Lowercase"}', "reference"),
        ('{"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}', "reference"),
    ],
)
def test_kinds(description: str, kind: str) -> None:
    normalizer = load(description)
    assert normalizer.kind == kind
    assert normalizer.starts_apart("x") == (kind != "reference")
    text = "ﬁé\u0301 İ"
    want = {"none": str, "nfc": whole}.get(kind, normalizer.text)(text)
    assert normalizer.text(text) == want
    assert (
        normalizer.buffer(text.encode() + BOUNDARY + b"A") == want.encode() + BOUNDARY + normalizer.text("A").encode()
    )


def test_an_unknown_version_is_probed_and_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path))
    monkeypatch.setattr(nfc, "_packaged", lambda version: None)
    known = nfc.tables().kind
    monkeypatch.setattr(nfc, "probe", lambda: known.copy())
    nfc.tables.cache_clear()
    first = nfc.tables().kind
    nfc.tables.cache_clear()
    monkeypatch.setattr(nfc, "probe", lambda: pytest.fail("probed again"))
    assert np.array_equal(nfc.tables().kind, first)
    nfc.tables.cache_clear()
