"""The device program against the slow twin, the references and itself: one compilation serves the whole file."""

from __future__ import annotations

import functools
import itertools
import random

import families
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_bpe

import toktier
from toktier import chunks, compact, device, program
from toktier.bpe import tables as bpe_tables
from toktier.bpe import twin
from toktier.bpe.lookup import lookup_tables
from toktier.bpe.merge_tiles import merge_pieces
from toktier.bpe.starts import live_slots, starts
from toktier.core import Tables
from toktier.pretok import scan, store
from toktier.pretok import twin as pretok_twin
from toktier.rows import Rows

CAPACITY = 1 << 14


@functools.cache
def family(name: str) -> toktier.Tokenizer:
    return toktier.load(families.tokenizer(name))


@functools.cache
def whole_text_piece():
    """Tables of a pre-tokenizer that splits nothing: a segment is a piece, so boundaries alone make pieces."""
    return store.load_tables(small_bpe.SPLIT_NOTHING, "tokenizers")


def engine_of(spec) -> device.DeviceEngine:
    return device.DeviceEngine(Tables(whole_text_piece(), bpe_tables.build(spec)))


def joined(pieces: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"\xff".join(pieces), np.uint8)


def random_text(rng: random.Random, alphabet: str, length: int) -> str:
    return "".join(rng.choices(alphabet, k=length))


NASTY = "aAsSlLtTrRevdm1234 \t\n\r'’.,!?/éÉßſK中の한ँ́̈²½ⅷ\u00a0\u2028\u3000🙂\x00_-"


# -- compaction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_positions_are_those_of_numpy_by_both_ways(share):
    flags = np.random.default_rng(0).random(1 << 14) < share
    want = np.nonzero(flags)[0]
    found, count = jax.jit(compact.positions)(flags)
    assert int(count) == len(want)
    assert (np.asarray(found)[: len(want)] == want).all()
    words, offsets, _ = jax.jit(compact.packed)(flags)
    wide = np.asarray(jax.jit(compact._every_bit_at_once)(words, offsets))
    assert (wide[: len(want)] == want).all()


def test_ranks_count_what_stands_before():
    flags = np.random.default_rng(1).random((3, 1024)) < 0.4
    before, total = jax.jit(compact.ranks)(flags)
    assert (np.asarray(before) == np.cumsum(flags, 1) - flags).all()
    assert (np.asarray(total) == flags.sum(1)).all()


# -- merges on random tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_pieces_of_every_length_on_random_tables(make):
    """Short pieces run in tiles, those beyond 128 bytes in the flat array; both must be BPE by definition."""
    rng = random.Random(7)
    for _ in range(12):
        spec = make(rng)
        letters = [b for b in range(97, 100)]
        pieces = [bytes(rng.choices(letters, k=rng.randint(1, 40))) for _ in range(60)]
        pieces += [bytes(rng.choices(letters, k=rng.randint(100, 400))) for _ in range(8)]
        pieces += [b"a" * 131, b"ab" * 90, b"aab" * 70, b"c" * 300]
        rng.shuffle(pieces)
        want = [t for p in pieces for t in twin.encode_piece(spec, p)]
        got = engine_of(spec).encode_buffer(joined(pieces))
        assert got.ids.tolist() == want
        lengths = np.diff(spec.token_offsets)[got.ids]
        assert (got.ends - lengths >= 0).all()
        assert (np.diff(got.ends) > 0).all()


@pytest.mark.parametrize("make", [small_bpe.random_listed, small_bpe.random_ranks])
def test_characters_of_several_bytes_on_random_tables(make):
    """Starts from characters, and what the byte beyond a token says about which merges can reach it."""
    rng = random.Random(11)
    characters = "aé中丁ñ"
    alphabet = bytes(sorted(set(characters.encode())))
    for _ in range(12):
        spec = make(rng, alphabet, 60)
        texts = ["".join(rng.choices(characters, k=rng.randint(1, 30))) for _ in range(60)]
        texts += ["".join(rng.choices(characters[rng.randint(0, 3) :], k=rng.randint(90, 300))) for _ in range(10)]
        pieces = [t.encode() for t in texts]
        want = [t for p in pieces for t in twin.encode_piece(spec, p)]
        assert engine_of(spec).encode_buffer(joined(pieces)).ids.tolist() == want


def test_ranks_that_are_not_orderly_go_one_at_a_time():
    """A product that merges earlier than its parts did: the case where merging all occurrences at once is wrong."""
    rng, seen = random.Random(3), 0
    while seen < 6:
        spec = small_bpe.random_listed(rng, order="shuffled")
        tables = bpe_tables.build(spec)
        if tables.orderly.all():
            continue
        seen += 1
        pieces = [bytes(rng.choices(b"abc", k=rng.randint(130, 300))) for _ in range(6)]
        want = [t for p in pieces for t in twin.encode_piece(spec, p)]
        assert engine_of(spec).encode_buffer(joined(pieces)).ids.tolist() == want


def test_rounds_between_two_looks_change_nothing():
    """One round, a few, and straight-line code for all that a piece can need."""
    rng = random.Random(23)
    for make in (small_bpe.random_listed, small_bpe.random_ranks):
        tables = engine_of(make(rng)).tables
        pieces = [bytes(rng.choices(b"abc", k=rng.randint(2, 16))) for _ in range(90)]
        data = np.full(1 << 11, 0xFF, np.uint8)
        data[: len(joined(pieces))] = joined(pieces)
        length = np.zeros(len(pieces) + 32, np.int32)
        length[: len(pieces)] = [len(p) for p in pieces]
        start = np.concatenate([[0], np.cumsum(length + 1)[:-1]]).astype(np.int32)
        one, few, all_of_them = (_merged(tables.bpe, data, start, length, len(pieces), k) for k in (1, 3, 15))
        assert (one > 0).sum() > len(pieces)
        assert np.array_equal(one, few)
        assert np.array_equal(one, all_of_them)


@functools.partial(jax.jit, static_argnames=("rounds",))
def _merged(bpe, data, start, length, count, rounds):
    size = data.shape[0]
    first = starts(bpe, data, jnp.concatenate([jnp.ones(1, bool), data[:-1] == 0xFF]), size, size)
    place, everywhere = live_slots(first, size, size).place, jnp.arange(size)
    nothing = jnp.zeros(size, jnp.int32)
    return merge_pieces(bpe, first, place, everywhere, Rows((start, length), count), nothing, 16, 32, rounds)


# -- whole texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", families.FAMILIES)
def test_device_equals_the_reference(name, corpus):
    tok, reference = family(name), families.tokenizer(name)
    if tok.core.reason:
        pytest.fail(tok.core.reason)
    rng = random.Random(1)
    nasty = [random_text(rng, NASTY, rng.randint(1, 60)) for _ in range(40)]
    texts = [t for t in (*corpus.values(), *nasty) if set(t.encode()) <= coverable(tok)]
    got = tok.encode_batch(texts, engine="device", special_tokens="parse")
    for k, text in enumerate(texts):
        want = reference.encode(text, add_special_tokens=False).ids
        assert got.ids[got.offsets[k] : got.offsets[k + 1]].tolist() == want, text


@functools.cache
def coverable(tok: toktier.Tokenizer) -> frozenset[int]:
    """The bytes that the vocabulary has a token for."""
    return frozenset(np.nonzero(tok.core.tables.bpe.byte_token >= 0)[0].tolist())


@pytest.mark.parametrize("name", families.FAMILIES)
def test_device_pieces_equal_the_twin(name, corpus):
    tables = family(name).core.tables.pretok
    rng = random.Random(2)
    texts = [*corpus.values(), *(random_text(rng, NASTY, 50) for _ in range(30))]
    buffer = joined([t.encode() for t in texts])
    want, _ = pretok_twin.piece_bounds(tables, buffer.tobytes())
    assert family(name).core.device.piece_marks(buffer).tolist() == want


def test_both_scans_give_the_same_marks(corpus):
    tables = jax.tree.map(jnp.asarray, scan.scan_tables(family("llama3").core.tables.pretok))
    data = np.full(CAPACITY, 255, np.uint8)
    text = joined([t.encode() for t in corpus.values()])[: CAPACITY - 1]
    data[: len(text)] = text
    symbol = jax.jit(scan.symbols)(tables, data)
    tree = jax.jit(scan._by_tree)(tables, symbol)
    blocks = jax.jit(scan._by_blocks)(tables, symbol)
    assert (np.asarray(tree) == np.asarray(blocks)).all()


@pytest.mark.parametrize("size", [4095, 4096, 4097, 8192])
def test_bytes_to_merge_may_fill_whole_tiles(size):
    """One piece, and many different ones, of so many bytes together as some tiles have."""
    tok, rng = family("llama3"), random.Random(size)
    words = [" " + "".join(rng.choices("qzxjkv", k=14)) for _ in range(size // 15 - 2)]
    words.append(" " + "".join(rng.choices("qzxjkv", k=size - 15 * len(words) - 1)))
    for text in ("".join(words), "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=size))):
        want = families.tokenizer("llama3").encode(text, add_special_tokens=False).ids
        assert tok.encode(text, engine="device").tolist() == want


def test_the_last_piece_may_end_inside_a_character():
    """Falcon cuts gamma before its second byte; with what is behind the last byte the first one made another letter."""
    tok, reference = family("falcon"), families.tokenizer("falcon")
    for front, letter, back in itertools.product(("xx", "zq", "\u043f"), "\u03b2\u03b3\u0432\u00f2\u0662", ("", "xx")):
        text = front + letter + back
        assert tok.encode(text, engine="device").tolist() == reference.encode(text, add_special_tokens=False).ids


def test_padding_and_neighbours_change_nothing(corpus):
    tok = family("gptoss")
    texts = list(corpus.values())
    alone = [tok.encode(t, engine="device").tolist() for t in texts]
    together = tok.encode_batch(texts, engine="device")
    assert together.to_lists() == alone
    backwards = tok.encode_batch(texts[::-1], engine="device")
    assert backwards.to_lists() == alone[::-1]


def test_chunked_equals_whole(corpus):
    tok = family("llama3")
    text = "".join(corpus.values()) * 3
    whole = tok.encode(text, engine="host", special_tokens="text")
    buffer = np.frombuffer(text.encode(), np.uint8)
    parts = chunks.plan(tok.core.tables.pretok, buffer, 1000)
    assert len(parts) > 20
    assert parts[0][0] == 0
    assert parts[-1][1] == len(buffer)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    engine = tok.core.device
    got = [engine.encode_buffer(buffer[a:b]).ids for a, b in parts[:40]]
    n = sum(map(len, got))
    assert np.concatenate(got).tolist() == whole[:n].tolist()


def test_a_buffer_larger_than_a_launch(corpus):
    tok = family("gpt2")
    text = ("".join(corpus.values()) * 40)[: 3 * (1 << 18) // 2]
    got, want = (
        tok.core.device.encode_buffer(np.frombuffer(text.encode(), np.uint8)),
        tok.encode(text, engine="host", special_tokens="text"),
    )
    assert got.ids.tolist() == want.tolist()
    assert got.ends[-1] == len(text.encode())


def test_where_no_cut_exists_the_part_reaches_to_the_next():
    tables = family("gpt2").core.tables.pretok
    buffer = np.frombuffer(b"word " * 10 + b"a" * 5000 + b" b c d", np.uint8)
    parts = chunks.plan(tables, buffer, 100)
    sizes = [b - a for a, b in parts]
    assert max(sizes) >= 5000
    assert sum(sizes) == len(buffer)


def test_no_result_depends_on_earlier_calls(corpus):
    tok = family("qwen3")
    texts = list(corpus.values())
    first = [tok.encode(t, engine="device").tolist() for t in texts]
    again = [tok.encode(t, engine="device").tolist() for t in texts[::-1]][::-1]
    assert first == again


def test_vocabularies_of_a_band_share_one_program(corpus):
    text = corpus["english"]
    family("gpt2").encode(text, engine="device")
    before = device.trace_count()
    for name in ("llama3", "qwen3", "gptoss", "deepseek_v3"):
        for size in (1, 100, len(text)):
            family(name).encode(text[:size], engine="device")
    assert device.trace_count() == before


def test_a_forked_child_is_refused_not_hung(monkeypatch):
    engine = family("gpt2").core.device
    monkeypatch.setattr(engine, "_process", -1)
    with pytest.raises(toktier.ToktierError, match="spawn"):
        engine.encode_buffer(np.frombuffer(b"text", np.uint8))


def test_device_tables_are_a_pytree_of_arrays():
    tables = family("gpt2").core.tables
    made = program.DeviceTables(scan.scan_tables(tables.pretok), lookup_tables(tables.bpe))
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(made))


def test_every_certified_cut_splits_the_ids(corpus):
    tok = family("gptoss")
    text = "".join(corpus.values())[:3000]
    buffer = np.frombuffer(text.encode(), np.uint8)
    whole = tok.core.host.encode_buffer(buffer)
    for place in chunks.cuts(tok.core.tables.pretok, buffer, 0, len(buffer) - 1)[::7]:
        left, right = (tok.core.host.encode_buffer(part) for part in (buffer[:place], buffer[place:]))
        assert np.concatenate([left.ids, right.ids]).tolist() == whole.ids.tolist()
