"""What the host engine looks up before it pre-tokenizes: units, shapes and segments change no result."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import families
import numpy as np
import pytest
import small_bpe

import toktier
from toktier.bpe import tables, twin
from toktier.encoded import Encoded
from toktier.host import HostEngine, engine, shapes
from toktier.host.segments import Segmenter
from toktier.host.units import split_units, unit_pattern
from toktier.pretok.host_scan import piece_bounds

FAMILIES = ["gpt2", "llama3", "deepseek_v3", "starcoder"]
NASTY = (
    "aabbdEeLlmrRsStTvV'''ıſ \t\n\r  \n\n0123456789.,;-_=#/\u00a0\u2003\u3000\x85éèß—。，中文字한글かなคนกิ่हिन्दी"
    "приветЭТО\u0301\u0302\u0345\u200d👩🏽🙂\U0001f1e9\x00\x0b\x0c\x7f\u0080"
)


class Tables(NamedTuple):
    pretok: object
    bpe: tables.BpeTables


@pytest.fixture(scope="module", params=[*FAMILIES, "o200k_base"])
def parts(request):
    """The tables of a tokenizer with a production pre-tokenizer."""
    source = request.param if request.param == "o200k_base" else families.tokenizer(request.param)
    return toktier.load(source).core.tables


def nasty(rng, longest=40) -> bytes:
    text = "".join(rng.choices(NASTY, k=rng.randint(1, longest)))
    return text.encode().replace(b"\x7f", b"\xff") if rng.random() < 0.3 else text.encode()


def pieces_of(pretok, data: bytes) -> list[bytes]:
    starts, ends = piece_bounds(pretok, np.frombuffer(data, np.uint8))
    return [data[i:j] for i, j in zip(starts.tolist(), ends.tolist(), strict=True)]


# ---- units ----


def test_units_make_up_the_buffer_and_end_at_certified_cuts(parts):
    pretok = parts.pretok
    pattern = unit_pattern(pretok)
    rng = random.Random(1)
    for _ in range(1500):
        data = nasty(rng)
        units = split_units(pattern, data)
        assert b"".join(units) == data
        for a, b in itertools.pairwise(units):
            if a[-1] != 0xFF and b[0] != 0xFF:
                x, y = a.decode()[-1], b.decode()[0]
                sx, sy = (pretok.symbol[int(pretok.block[ord(c) >> 8]) * 256 + (ord(c) & 255)] for c in (x, y))
                assert pretok.cut[sx, sy], (x, y)
    assert split_units(pattern, b"") == []


def test_every_two_characters(parts):
    """All pairs of symbols, as the end of one word and the beginning of the next."""
    pretok = parts.pretok
    pattern = unit_pattern(pretok)
    for x, y in itertools.product(dict.fromkeys(pretok.representatives), repeat=2):
        for text in ("a" + x + y + "b", " " + x + x + y + y):
            data = text.encode()
            assert [p for u in split_units(pattern, data) for p in pieces_of(pretok, u)] == pieces_of(pretok, data)


def test_words_of_prose_are_units_of_their_own(parts):
    """Not a law of the ids, but what the units are there for."""
    units = split_units(unit_pattern(parts.pretok), "One word, then more: слово и ещё\n".encode())
    assert len(units) >= 7


def test_there_are_no_units_without_cuts_or_where_characters_are_dropped(parts):
    pretok = parts.pretok
    assert unit_pattern(None) is None

    class Changed:
        def __init__(self, **arrays):
            self.arrays = arrays

        def __getattr__(self, name):
            return self.arrays[name] if name in self.arrays else getattr(pretok, name)

    assert unit_pattern(Changed(cut=np.zeros_like(pretok.cut))) is None
    out = pretok.out.copy()
    out[0, 0, 0] = 2
    assert unit_pattern(Changed(out=out)) is None


# ---- shapes ----


def test_shapes_cut_as_the_automata_do(parts, monkeypatch):
    pretok = parts.pretok
    rng = random.Random(2)
    texts = [t for t in (nasty(rng, 12).replace(b"\xff", b"") for _ in range(3000)) if t]
    want = [tuple(pieces_of(pretok, t)) for t in texts]
    for few in (0, 10**9):  # in NumPy, and one by one
        monkeypatch.setattr(shapes, "_FEW", few)
        known = shapes.Shapes(pretok)
        assert known.pieces(texts) == want
        assert known.pieces(texts[::-1]) == want[::-1]
        assert len(known._known) < len({*texts})
    monkeypatch.setattr(shapes, "SHAPES", 5)
    bounded = shapes.Shapes(pretok)
    for i in range(0, len(texts), 7):
        assert bounded.pieces(texts[i : i + 7]) == want[i : i + 7]
        assert len(bounded._known) <= 5
        assert len(bounded._of_point) <= 5


def test_words_of_every_length_share_a_shape_and_are_cut_right(parts):
    pretok = parts.pretok
    known = shapes.Shapes(pretok)
    rng = random.Random(3)
    heads = ["", " ", ".", "\n  ", "('", "don't", "9", "\r\n\t", "_", "Éa", "A", "\u0301"]
    heads += ["—", "。", "\u2003", "a—", "🙂"]
    for word in (
        "abcdefghijklm",
        "ellervedst",
        "LLVE",
        "AbCd",
        "xXxXyY",
        "vellsellt",
        "приветдруг",
        "中文字かな한글",
        "éaéaéa",
    ):
        texts = [(h + word[:n] + word[: rng.randint(0, 9)]).encode() for h in heads for n in range(1, len(word) + 1)]
        assert known.pieces(texts) == [tuple(pieces_of(pretok, t)) for t in texts]


# ---- segments ----


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_merging_segments_is_merging_the_piece(make):
    """Random tables over bytes of a few characters, so that tokens begin and end inside characters."""
    rng = random.Random(4)
    cut = 0
    for _ in range(30):
        spec = make(rng, bytes(sorted(set("aéè—🙂".encode()))))
        bpe = tables.build(spec)
        rule = twin._vocabulary(spec).rule
        pieces = ["".join(rng.choices("aéè—🙂", k=rng.randint(1, 9))).encode() for _ in range(150)]
        pieces += [p[i:] or p for p in pieces[:40] for i in (1, 2)] + [p[:-i] or p for p in pieces[:40] for i in (1, 2)]
        segments, counts = Segmenter(bpe).split(pieces)
        assert len(counts) == len(pieces)
        assert sum(counts) == len(segments)
        rest = iter(segments)

        def merged(data, bpe=bpe, rule=rule):
            return twin.merge([int(bpe.byte_token[b]) for b in data], rule)

        for piece, n in zip(pieces, counts, strict=True):
            parts = list(itertools.islice(rest, n))
            assert b"".join(parts) == piece
            assert all(parts)
            assert [t for p in parts for t in merged(p)] == merged(piece), (piece, parts)
            cut += n > 1
    assert cut > 100


def test_no_token_lies_across_a_cut_and_clauses_fall_apart():
    spec = toktier.load("o200k_base").spec
    bpe = toktier.load("o200k_base").core.tables.bpe
    pieces = [spec.token_bytes(t) for t in np.unique(bpe.product).tolist()]
    assert Segmenter(bpe).split(pieces) == (pieces, [1] * len(pieces))
    segments, _ = Segmenter(bpe).split(["你是如何使用这个软件的呢".encode()])
    assert len(segments) > 2


# ---- the whole engine ----


def reference_of(parts):
    """Ids by pieces of the automata and merges one by one."""
    host = HostEngine(Tables(None, parts.bpe))

    def ids(data):
        return np.frombuffer(b"".join(host.encode_pieces(pieces_of(parts.pretok, data))), np.int32).tolist()

    return ids


def test_no_way_through_the_engine_changes_a_result(parts, monkeypatch, corpus):
    rng = random.Random(5)
    want_of = reference_of(parts)
    texts = [nasty(rng, rng.choice([5, 60, 300])) for _ in range(120)] + [t.encode() for t in corpus.values()]
    want = [want_of(t) for t in texts]
    for bulk, shaped, warm, vocabulary, whole in (
        (0, 0, 0, 0, 10**9),
        (10**9, 0, 0, 0, 10**9),
        (10**9, 10**9, 10**9, 10**9, 10**9),
        (64, 8, 64, 64, 10**9),
        (64, 8, 64, 64, 1),
    ):
        for name, value in {"_BULK": bulk, "_SHAPED": shaped, "_WARM": warm, "_VOCABULARY": vocabulary}.items():
            monkeypatch.setattr(engine, name, value)
        # from which size on the compiled merger gets a text as a whole
        monkeypatch.setattr(engine, "_TEXT", whole)
        monkeypatch.setattr(engine, "_COMPILE_BYTES", whole)
        monkeypatch.setattr(engine, "_LONG_TEXT", 100)
        monkeypatch.setattr(engine, "_PART", 1000)
        monkeypatch.setattr(engine, "_HAN", 0x80 if warm else 0xE3)
        monkeypatch.setattr(engine, "_UNITS", 30 if warm else 10**9)
        monkeypatch.setattr(engine, "_WIDE", 1)
        for entries in (1 << 16, 20):
            host = HostEngine(parts, cache_entries=entries)
            if bulk:
                known = b"".join(texts[::3])
                ids, ends = HostEngine(parts).encode_buffer(known)
                begins = ends - parts.bpe.token_length[ids]
                for skip in (len(known) // 3, 0):  # the end of a text, from wherever it is; then all of it
                    host.learn(known[skip:], Encoded(ids[begins >= skip], ends[begins >= skip] - skip))
            for _ in range(2):
                for text, ids in zip(texts, want, strict=True):
                    encoded = host.encode_buffer(text)
                    assert encoded.ids.tolist() == ids
                    sizes = parts.bpe.token_length[encoded.ids]
                    assert (encoded.ends - sizes >= np.append(0, encoded.ends[:-1])).all()
                    covered = np.frombuffer(text, np.uint8) != 0xFF
                    assert len(ids) == 0 or sizes.sum() == covered.sum()
                    assert all(text[j - n : j].find(b"\xff") < 0 for j, n in zip(encoded.ends, sizes, strict=True))
            for cache in (host.units, host.cache, host.segments):
                assert len(cache) <= 2 * entries
                assert all(len(key) <= 128 for key in cache.young)


def test_a_long_unit_is_not_remembered(parts):
    host = HostEngine(parts)
    text = ("слово" * 100).encode()
    host.encode_buffer(text)
    assert len(host.units) == 0
