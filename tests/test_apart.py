"""Pieces that fall apart on the device: where, and what is looked up of the parts."""

from __future__ import annotations

import functools
import random

import families
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_bpe
from test_device import CAPACITY, engine_of, joined

import toktier
from toktier.bpe import apart
from toktier.bpe.lookup import aligned_words
from toktier.bpe.segments import Segmenter
from toktier.pretok.scan import marks
from toktier.pretok.tables import INSIDE

CHARACTERS = "aé中文字かなーкириह्ि한국🙂👩‍ x1.。\n"


@jax.jit
def _marked(tables, data, ask):
    code = marks(tables.scan, data)
    return code, apart.fall_apart(tables.bpe, data, aligned_words(data), code, ask, 1024)


@functools.cache
def _tokenizer(name: str) -> toktier.Tokenizer:
    return toktier.load(name if name.endswith("base") else families.tokenizer(name))


@pytest.mark.parametrize("name", ["o200k_base", "llama3"])
def test_they_fall_apart_where_the_segmenter_cuts(name, corpus):
    core = _tokenizer(name).core
    rng = random.Random(5)
    text = "".join(corpus.values()) + "".join(rng.choices(CHARACTERS, k=4000))
    data = np.full(CAPACITY, 0xFF, np.uint8)
    raw = np.frombuffer(text.encode()[: CAPACITY - 8].decode(errors="ignore").encode(), np.uint8)
    data[: len(raw)] = raw
    code, marked = (np.asarray(x) for x in _marked(core.device.tables, data, jnp.bool_(True)))
    places = Segmenter(core.tables.bpe, whole=True).places(data)
    places = places[places < len(raw)]
    want = places[code[places] == INSIDE]
    assert np.flatnonzero(marked == apart.PART).tolist() == want.tolist()
    assert len(want) > 1000
    assert (marked[marked != apart.PART] == code[marked != apart.PART]).all()
    _, untouched = _marked(core.device.tables, data, jnp.bool_(False))
    assert (np.asarray(untouched) == code).all()


def test_a_token_that_is_one_only_as_a_whole_piece_is_none_as_a_part():
    """The reference looks a piece up as a whole (`ignore_merges`); what falls off a piece is merged."""
    letters = sorted({*"abc 中文".encode()})
    names = [bytes([b]) for b in letters]
    merges = []

    def merge(left: bytes, right: bytes) -> None:
        if left + right not in names:
            names.append(left + right)
        merges.append((left, right))

    for character in ("中", "文"):
        one, two, three = (bytes([b]) for b in character.encode())
        merge(one, two)
        merge(one + two, three)
    merge(b"b", b"c")
    names += [b"ab", "中文".encode(), "文ab".encode(), "中文ab".encode() * 3, b"abc" * 8, b" ab"]
    token_of = {name: k for k, name in enumerate(names)}
    spec = small_bpe.make_spec(token_of, [(token_of[a], token_of[b], token_of[a + b]) for a, b in merges], "listed")
    reference = small_bpe.reference_encode(spec)
    pieces = [token for token in names if len(token) > 1 and token.decode(errors="ignore").encode() == token]
    pieces += [a + b for a in pieces for b in pieces]
    pieces += ["中".encode() + b"abc" * 8 + "中".encode(), b"abc" * 8 + "中文".encode(), "文中".encode() * 9]
    rng = random.Random(9)
    pieces += [
        "".join(rng.choices(["中", "文", "a", "b", "c", "ab", " ab", "中文"], k=k)).encode() for k in range(1, 60)
    ]
    want = [t for piece in pieces for t in reference(piece)]
    engine = engine_of(spec)
    assert engine.encode_buffer(joined(pieces)).ids.tolist() == want
    code, marked = _marked(engine.tables, engine._padded(joined(pieces)), jnp.bool_(True))
    assert (np.asarray(marked) != np.asarray(code)).sum() > 100
