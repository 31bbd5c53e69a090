"""The host engine: list, heap and rounds equal the twin; ids and ends are right; the cache changes nothing."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import random
import threading
from typing import NamedTuple

import families
import numpy as np
import pytest
import small_bpe
from hypothesis import given
from hypothesis import strategies as st

from toktier.bpe import tables, twin
from toktier.host import HostEngine, compiled, engine
from toktier.host.bulk import BulkMerger
from toktier.host.compiled import LONGEST, CompiledMerger, all_fit, fits
from toktier.host.whole import find_whole

NASTY = (
    "aab'ıſ \t\n\r0123456789.,;-_=#\u00a0\u3000éèß中文字符測試的一한글かなคนกิ่हिन्दी"
    "\u0301\u0302\u0345\u200d👩🏽🙂\U0001f1e9\x00\x7f\u0080"
)


class Tables(NamedTuple):
    pretok: object
    bpe: tables.BpeTables


@pytest.fixture(scope="module")
def vocabulary():
    """The spec of a real rank vocabulary, its tables and its reference encoding."""
    spec = small_bpe.make_spec({token: i for i, token in enumerate(families.ranks())})
    return spec, tables.build(spec), families.encoding("o200k")


@pytest.fixture
def cut(monkeypatch):
    """Let the engine cut a buffer where the test says: at every place in `bounds` (starts, ends)."""
    bounds = {}
    monkeypatch.setattr(engine, "piece_bounds", lambda pretok, buffer: bounds[buffer.tobytes()])
    return bounds


def unpack(packed: list[bytes]) -> list[list[int]]:
    return [np.frombuffer(p, np.int32).tolist() for p in packed]


def reference(encoding, piece: bytes) -> list[int]:
    """The ids of one piece, whatever the pattern would make of it."""
    return encoding._core_bpe.encode_single_piece(piece)


# ---- merges ----


def check_all_ways(spec, pieces):
    """List, heap, rounds and the whole engine against the definition."""
    host = HostEngine(Tables(None, tables.build(spec)))
    rule = twin._vocabulary(spec).rule
    byte_token = host.tables.bpe.byte_token
    starts = [[int(byte_token[b]) for b in piece] for piece in pieces]
    want = [twin.merge(tokens, rule) for tokens in starts]
    assert [host._single.encode(p) for p in pieces] == want
    assert [host._single._merge_list(list(t)) for t in starts] == want
    assert [host._single._merge_heap(list(t)) for t in starts] == want
    assert [ids.tolist() for ids in host._rounds.encode(pieces)] == want
    compiled = CompiledMerger(host.tables.bpe, host._single.encode)
    fit = [k for k, p in enumerate(pieces) if fits(p)]
    assert unpack(compiled.encode([pieces[k] for k in fit])) == [want[k] for k in fit]
    assert compiled.usable
    want = [twin.encode_piece(spec, p) for p in pieces]
    assert unpack(host.encode_pieces(pieces)) == want
    assert unpack(host.encode_pieces(pieces)) == want


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_every_way_of_merging_equals_the_definition_on_random_tables(make):
    rng = random.Random(11)
    for _ in range(5):
        check_all_ways(make(rng), [small_bpe.random_piece(rng, longest=30) for _ in range(250)])


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_characters_of_several_bytes_on_random_tables(make):
    """The alphabet are bytes that make up a few characters, so that merges cross the edges of characters too."""
    rng = random.Random(12)
    for _ in range(5):
        spec = make(rng, bytes(sorted(set("aéè—".encode()))))
        pieces = ["".join(rng.choices("aéè—", k=rng.randint(1, 12))).encode() for _ in range(250)]
        # some pre-tokenizers cut inside a character: heads and tails of pieces
        pieces += [p[i:] or p for p in pieces[:60] for i in (1, 2)] + [p[:-i] or p for p in pieces[:60] for i in (1, 2)]
        check_all_ways(spec, pieces)


def test_the_compiled_merger_takes_part_once_many_pieces_were_merged(vocabulary, monkeypatch):
    """And changes no result, whatever mix of pieces is short, long, broken or holds a zero byte."""
    monkeypatch.setattr(engine, "_COMPILE", 100)
    monkeypatch.setattr(compiled, "LONGEST", 96)
    spec, bpe, _ = vocabulary
    host = HostEngine(Tables(None, bpe))
    rng = random.Random(29)
    for _ in range(8):
        pieces = ["".join(rng.choices(NASTY, k=rng.choice([1, 3, 9, 60]))).encode() for _ in range(40)]
        pieces += [p[1:] or b"\0" for p in pieces[:10]] + [b"\0" * 3, b"a\0b", b"x" * 97]
        assert unpack(host.encode_pieces(pieces)) == [twin.encode_piece(spec, p) for p in pieces]
    assert host._compiled is not None
    assert host._compiled.usable


def test_texts_in_pieces_with_tokens_that_no_merges_make(monkeypatch):
    """A piece that is such a token is that token, wherever it stands and whatever its bytes are parts of."""
    monkeypatch.setattr(compiled, "WATCHED", 20)
    rng = random.Random(31)
    changed = 0
    for _ in range(6):
        spec = small_bpe.random_ranks(rng, b"abc")
        bpe = tables.build(spec)
        plain = HostEngine(Tables(None, bpe))._single.encode
        # any string of two tokens or more may be one, given an id of its own
        some = {p for p in (small_bpe.random_piece(rng, longest=6) for _ in range(60)) if len(set(plain(p))) > 1}
        whole_only = {p: np.int32(bpe.n_ids + k).tobytes() for k, p in enumerate(sorted(some))}
        lengths = np.append(bpe.token_length, list(map(len, sorted(some))))
        merger = CompiledMerger(dataclasses.replace(bpe, token_length=lengths.astype(np.int32)), plain, whole_only)
        bulk = BulkMerger(bpe, merger)
        for _ in range(40):
            pieces = [small_bpe.random_piece(rng, longest=8) for _ in range(rng.randint(1, 30))]
            pieces = [p for p in pieces if fits(p)] + [rng.choice(sorted(some)), b"abc"]
            packed = [whole_only.get(p) or np.array(plain(p), np.int32).tobytes() for p in pieces]
            want = np.frombuffer(b"".join(packed), np.int32).tolist()
            changed += any(p in whole_only for p in pieces)
            between = [rng.choice([b"", b"\xff", b"\xff\xff"]) for _ in pieces]
            raw = np.frombuffer(b"".join(a + b for a, b in zip(between, pieces, strict=True)), np.uint8)
            ends = np.cumsum([len(a) + len(b) for a, b in zip(between, pieces, strict=True)])
            starts = ends - np.array(list(map(len, pieces)))
            assert merger.encode_text(raw, starts, ends).tolist() == want
            assert bulk.encode_text(raw, starts, ends).tolist() == want
            assert merger.encode_words([p.decode() for p in pieces]).tolist() == want
        assert merger.usable
    assert changed > 100


@pytest.mark.parametrize(("entries", "ids"), [(1 << 17, 1 << 20), (9, 1 << 20), (1 << 17, 25)])
def test_pieces_met_before_are_looked_up_whatever_is_remembered(vocabulary, monkeypatch, entries, ids):
    """Short and long pieces, in tables that are full all the time, whose slots many share, from several threads."""
    from toktier.host import bulk

    monkeypatch.setattr(bulk, "_ENTRIES", entries)
    monkeypatch.setattr(bulk, "_IDS", ids)
    monkeypatch.setattr(bulk, "_SHIFT", np.uint64(64 - 5))
    spec, bpe, _ = vocabulary
    host = HostEngine(Tables(None, bpe))
    merger = BulkMerger(bpe, CompiledMerger(bpe, host._single.encode, host._whole_only))
    rng = random.Random(41)
    letters = NASTY.replace("\x00", "")
    words = ["".join(rng.choices(letters, k=rng.choice([1, 2, 4, 8, 15, 16, 17, 30]))) for _ in range(150)]
    words += ["a" * n for n in range(1, 20)] + ["a" * n + "b" for n in (6, 7, 8, 14, 15, 16)]
    texts = []
    for _ in range(12):
        pieces = [w.encode() for w in rng.choices(words, k=rng.randint(1, 60))]
        between = [rng.choice([b"", b"", b"\xff"]) for _ in pieces]
        raw = np.frombuffer(b"".join(a + b for a, b in zip(between, pieces, strict=True)), np.uint8)
        ends = np.cumsum([len(a) + len(b) for a, b in zip(between, pieces, strict=True)])
        want = [t for p in pieces for t in twin.encode_piece(spec, p)]
        texts.append((raw, ends - np.array(list(map(len, pieces))), ends, want))

    wrong = []

    def work(seed):
        for raw, starts, ends, want in random.Random(seed).choices(texts, k=30):
            if merger.encode_text(raw, starts, ends).tolist() != want:
                wrong.append(raw)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert 1 <= len(merger._shelf) <= 3
    assert all(met._entries <= entries for met in merger._shelf)
    raw = np.full(LONGEST + 1, 97, np.uint8)
    assert merger.encode_text(raw, np.array([0]), np.array([len(raw)])) is None
    assert merger.encode_text(raw[:0], np.array([], int), np.array([], int)) is None


def test_the_compiled_merger_leaves_long_pieces_to_others(vocabulary):
    _, bpe, _ = vocabulary
    merger = CompiledMerger(bpe, HostEngine(Tables(None, bpe))._single.encode)
    raw = np.frombuffer(b"x" * (LONGEST + 1), np.uint8)
    assert merger.encode_text(raw, np.array([0]), np.array([len(raw)])) is None
    assert merger.encode_text(raw[:0], np.array([], int), np.array([], int)) is None
    assert merger.encode_text(raw, np.array([0, 9]), np.array([9, len(raw)])) is not None


def test_what_fits_the_compiled_merger():
    assert fits(b"abc")
    assert fits("é".encode())
    for bad in (b"a\0", "é".encode()[:1], b"a" * (LONGEST + 1)):
        assert not fits(bad)
        assert not all_fit([b"abc", bad, b"abc"])
    assert all_fit([b"abc", "é".encode(), b"x" * LONGEST])


def test_a_difference_ends_the_use_of_the_compiled_merger(vocabulary, monkeypatch):
    _, bpe, _ = vocabulary
    plain = HostEngine(Tables(None, bpe))._single.encode
    with pytest.warns(RuntimeWarning, match="plain Python goes on alone"):
        assert not CompiledMerger(bpe, lambda piece: [*plain(piece), 0]).usable
    wrong: list[bytes] = []
    merger = CompiledMerger(bpe, lambda piece: [*plain(piece), 0] if piece in wrong else plain(piece))
    assert merger.usable
    monkeypatch.setattr(compiled, "WATCHED", 1)
    merger._until = 0
    wrong.append(b"zqzq")
    with pytest.warns(RuntimeWarning, match="zqzq"):
        assert unpack(merger.encode([b"zqzq", b"qzqz"])) == [[*plain(b"zqzq"), 0], plain(b"qzqz")]
    assert not merger.usable
    wrong.clear()
    for way in ("text", "words"):
        merger = CompiledMerger(bpe, lambda piece: [*plain(piece), 0] if piece in wrong else plain(piece))
        merger._until = 0
        wrong.append(b"zqzq")
        raw = np.frombuffer(b"zqzqqzqz", np.uint8), np.array([0, 4]), np.array([4, 8])
        with pytest.warns(RuntimeWarning, match="zqzq"):
            found = merger.encode_words(["zqzq", "qzqz"]) if way == "words" else merger.encode_text(*raw)
        assert found is None
        assert not merger.usable
        wrong.clear()


def test_rounds_hand_over_to_the_heap_in_the_middle(monkeypatch):
    """Whatever has been merged when rounds stop paying, the result is the same."""
    from toktier.host import rounds

    monkeypatch.setattr(rounds, "_SMALL", 0)
    rng = random.Random(13)
    for slow in (1, 10**9):
        monkeypatch.setattr(rounds, "_SLOW", slow)
        monkeypatch.setattr(rounds, "_THIN", rng.choice([1, 10**9]))
        for _ in range(4):
            spec = small_bpe.random_spec(rng)
            pieces = [small_bpe.random_piece(rng, longest=30) for _ in range(200)]
            check_all_ways(spec, [*pieces, *(small_bpe.random_piece(rng, longest=150) for _ in range(5))])


def test_a_round_changes_no_result_from_any_state():
    """Any tokens in a row, not only those that bytes lead to: after one round the definition gives the same."""
    rng = random.Random(20)
    merged = 0
    for _ in range(10):
        spec = small_bpe.random_listed(rng, merges=60)
        rounds = HostEngine(Tables(None, tables.build(spec)))._rounds
        bpe, sentinel = rounds._tables, rounds._sentinel
        rank_of = {p: (r, int(bpe.product[r])) for r, p in enumerate(map(tuple, bpe.pairs.tolist()))}
        ids = sorted({*bpe.product.tolist(), *(t for t in bpe.byte_token.tolist() if t >= 0)})
        parts_of = dict(zip(bpe.product.tolist(), bpe.pairs.tolist(), strict=True))
        pieces = []
        for x, y in rng.choices(bpe.pairs.tolist(), k=300):
            # (x, y), contested from one side by a token that is still to be made, in a run or not, anywhere
            left = [w for w, x_ in rank_of if x_ == x] or ids
            right = [v for y_, v in rank_of if y_ == y] or ids
            sides = [parts_of.get(t, [t]) for t in (rng.choice(left), rng.choice(right))]
            piece = sides[0] + [x, y] + [y] * rng.choice([0, 0, 1, 3]) + sides[1]
            pieces.append(rng.choices(ids, k=rng.randint(0, 2)) + piece + rng.choices(ids, k=rng.randint(0, 2)))
        flat = [sentinel] * 4 + list(itertools.chain(*([*p, sentinel] for p in pieces))) + [sentinel] * 3
        state = rounds._state(np.array(flat, np.int32))
        rule = lambda a, b: rank_of.get((a, b))  # noqa: B023, E731
        want = [twin.merge(piece, rule) for piece in pieces]
        for picked in (rounds._safe(state), rounds._with_lowest(state, np.zeros(0, np.int64))):
            after = rounds._merge(state, picked)
            again = rounds._state(after.token)
            assert all(np.array_equal(a, b) for a, b in zip(after, again, strict=True))
            edge = np.flatnonzero(after.token == sentinel)[3:-3].tolist()
            parts = [after.token[i + 1 : j].tolist() for i, j in itertools.pairwise(edge)]
            for k, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
                assert twin.merge(part, rule) == want[k], (piece, part, bpe.pairs.tolist())
            merged += len(picked)
    assert merged > 500


@given(st.lists(st.text(st.sampled_from(NASTY) | st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_pieces_equal_the_reference(vocabulary, texts):
    spec, bpe, encoding = vocabulary
    pieces = [t.encode() for t in texts]
    host = HostEngine(Tables(None, bpe))
    want = [reference(encoding, p) for p in pieces]
    assert unpack(host.encode_pieces(pieces)) == want == [twin.encode_piece(spec, p) for p in pieces]
    rest = [p for p, token in zip(pieces, find_whole(bpe, pieces), strict=True) if token < 0]
    assert [ids.tolist() for ids in host._rounds.encode(rest)] == [reference(encoding, p) for p in rest]


def test_single_code_points_equal_the_reference(vocabulary):
    _, bpe, encoding = vocabulary
    host = HostEngine(Tables(None, bpe))
    points = [c for c in itertools.chain(range(0x600), range(0x600, 0x110000, 47)) if not 0xD800 <= c < 0xE000]
    for frame in ("{0}", "a{0}{0}", " {0}é"):  # at the head, behind ASCII, behind a character of several bytes
        pieces = [frame.format(chr(c)).encode() for c in points]
        want = [reference(encoding, p) for p in pieces]
        assert unpack(host.encode_pieces(pieces)) == want
        assert [host._single.encode(p) for p in pieces[::11]] == [
            ids.tolist() for ids in host._rounds.encode(pieces[::11])
        ]


def test_every_token_is_found_as_a_whole_and_nothing_else(vocabulary):
    spec, bpe, _ = vocabulary
    tokens = [t for t in range(spec.n_ids) if bpe.whole[t]]
    pieces = [spec.token_bytes(t) for t in tokens]
    assert find_whole(bpe, pieces).tolist() == tokens
    known = set(pieces)
    others = (
        [p + b"\0" for p in pieces[::7]]
        + [b"\0" + p for p in pieces[::7]]
        + [p[:-1] for p in pieces[::5] if len(p) > 1]
    )
    others += [a + b for a, b in zip(pieces[-400:], pieces[-800:], strict=False)]
    others = [p for p in others if p not in known]
    assert (find_whole(bpe, others) == -1).all()


@pytest.mark.parametrize(
    "piece",
    [
        "a" * 50_000,
        " " * 50_001,
        "\n" * 30_000,
        "0123456789" * 4_000,
        "\u0301" * 20_000,
        "\u0301\u0302" * 15_000,
        "中文字符测試" * 3_000,
        "".join(random.Random(1).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=60_000)),
    ],
    ids=["letter", "space", "newline", "digits", "mark", "two marks", "han", "base64"],
)
def test_long_pieces_equal_the_reference(vocabulary, piece):
    _, bpe, encoding = vocabulary
    host = HostEngine(Tables(None, bpe))
    want = reference(encoding, piece.encode())
    assert unpack(host.encode_pieces([piece.encode()])) == [want]
    assert host._single.encode(piece[:5000].encode()) == reference(encoding, piece[:5000].encode())
    assert len(host.cache) == 0  # too long to keep


# ---- buffers ----


def random_buffer(rng, texts):
    """A buffer of pieces with boundaries and dropped bytes between them, and where its pieces are."""
    data, starts, ends = b"", [], []
    for _ in range(rng.randint(0, 60)):
        data += rng.choice([b"", b"", b"", b"\xff", b"\xff\xff", b" ", b"  "])
        text = rng.choice(texts)
        i = rng.randrange(len(text))
        starts.append(len(data))
        data += text[i : i + rng.randint(1, 12)].encode()
        ends.append(len(data))
    data += rng.choice([b"", b"\xff" * 5])
    return data, np.array(starts, np.int64), np.array(ends, np.int64)


def test_ids_and_ends_of_buffers_with_holes(vocabulary, corpus, cut):
    _, bpe, encoding = vocabulary
    rng = random.Random(14)
    host = HostEngine(Tables(None, bpe))
    for _ in range(300):
        data, starts, ends = random_buffer(rng, list(corpus.values()))
        cut[data] = starts, ends
        want_ids, want_ends = [], []
        for i, j in zip(starts.tolist(), ends.tolist(), strict=True):
            ids = reference(encoding, data[i:j])
            want_ids += ids
            want_ends += list(
                itertools.accumulate((len(encoding.decode_single_token_bytes(t)) for t in ids), initial=i)
            )[1:]
        for buffer in (data, np.frombuffer(data, np.uint8)):
            got = host.encode_buffer(buffer)
            assert (got.ids.dtype, got.ends.dtype) == (np.int32, np.int64)
            assert got.ids.tolist() == want_ids
            assert got.ends.tolist() == want_ends
        assert host.piece_marks(data).tolist() == starts.tolist()


def test_slabs_change_nothing(vocabulary, corpus, cut, monkeypatch):
    _, bpe, _ = vocabulary
    rng = random.Random(15)
    data, starts, ends = random_buffer(rng, list(corpus.values()))
    cut[data] = starts, ends
    want = HostEngine(Tables(None, bpe)).encode_buffer(data)
    monkeypatch.setattr(engine, "_SLAB", 3)
    monkeypatch.setattr(engine, "_MANY", 2)
    monkeypatch.setattr(engine, "_FEW", 0)
    got = HostEngine(Tables(None, bpe)).encode_buffer(data)
    assert got.ids.tolist() == want.ids.tolist()
    assert got.ends.tolist() == want.ends.tolist()


# ---- the cache ----


def words(corpus, rng, n=400):
    text = "".join(corpus.values())
    return [text[i : i + rng.randint(1, 70)].encode() for i in (rng.randrange(len(text) - 70) for _ in range(n))]


def test_the_cache_is_bounded_and_changes_no_result(vocabulary, corpus):
    """Tiny, usual, and full of other texts: the same ids."""
    _, bpe, encoding = vocabulary
    rng = random.Random(16)
    usual, tiny, none = (HostEngine(Tables(None, bpe), cache_entries=n) for n in (1 << 16, 7, 0))
    for _ in range(25):
        pieces = words(corpus, rng, rng.choice([1, 5, 60]))
        want = [reference(encoding, p) for p in pieces]
        for host, most in ((usual, 1 << 17), (tiny, 14), (none, 0)):
            assert unpack(host.encode_pieces(pieces)) == want
            assert len(host.cache) <= most
    assert len(tiny.cache) > 0


def test_pieces_in_use_survive_a_full_cache(vocabulary):
    _, bpe, _ = vocabulary
    host = HostEngine(Tables(None, bpe), cache_entries=8)
    for k in range(40):
        host.encode_pieces([b"kept", b"%d" % k])
        assert b"kept" in host.cache.young or b"kept" in host.cache.recall([b"kept"])


def test_threads_share_an_engine(vocabulary, corpus):
    _, bpe, encoding = vocabulary
    rng = random.Random(17)
    host = HostEngine(Tables(None, bpe), cache_entries=50)
    work = [words(corpus, rng) for _ in range(8)]
    want = [[reference(encoding, p) for p in pieces] for pieces in work]
    got: list = [None] * len(work)

    def run(k):
        got[k] = [unpack(host.encode_pieces(work[k])) for _ in range(5)]

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(work))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(result == want[k] for k, results in enumerate(got) for result in results)


def test_an_engine_survives_pickling(vocabulary, corpus):
    _, bpe, _ = vocabulary
    host = HostEngine(Tables(None, bpe), cache_entries=5)
    pieces = words(corpus, random.Random(18), 50)
    want = host.encode_pieces(pieces)
    again = pickle.loads(pickle.dumps(host))
    assert again.cache.entries == 5
    assert again.encode_pieces(pieces) == want


def test_the_pair_dictionary_knows_every_pair(vocabulary):
    from toktier.host import short
    from toktier.host.short import PairRanks

    _, bpe, _ = vocabulary
    rank_of = {(a << 20 | b): r for r, (a, b) in enumerate(bpe.pairs.tolist())}
    rng = random.Random(19)
    absent = [rng.randrange(bpe.n_ids) << 20 | rng.randrange(bpe.n_ids) for _ in range(3000)]
    pairs = absent + list(rank_of)
    rng.shuffle(pairs)
    ranks = PairRanks(bpe)
    want = [rank_of.get(p, len(rank_of)) for p in pairs]
    assert [ranks[p] for p in pairs] == want
    assert len(ranks) <= short._PAIRS


# ---- with the pre-tokenizer ----


@pytest.mark.parametrize("family", ["gpt2", "llama3", "deepseek_v3", "starcoder"])
def test_ids_and_pieces_of_production_families(family, corpus):
    """Real text and nasty text through the whole engine: bimachine, cache, merges."""
    import toktier

    spoken = families.tokenizer(family)
    tok = toktier.load(spoken)
    rng = random.Random(21)
    texts = [*corpus.values(), *("".join(rng.choices(NASTY, k=rng.randint(1, 60))) for _ in range(200))]
    for text in texts:
        assert list(tok.encode(text, engine="host")) == spoken.encode(text, add_special_tokens=False).ids
        encoded = tok._core.host.encode_buffer(text.encode())
        assert encoded.ends[-1] == len(text.encode())
        assert set(tok._core.host.piece_marks(text.encode()).tolist()) <= {0, *encoded.ends.tolist()}
