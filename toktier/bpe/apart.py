"""Pieces that fall apart: a mark wherever no token of the vocabulary could lie across (traced JAX functions).

Nothing is ever merged across such a place (segments.py, docs/merges.md), so the sides are looked up and merged as
pieces of their own.  A clause of Chinese, one piece that nobody saw before, becomes a dozen parts, most of which are
one token and the rest seen many times: a fifth of the bytes is left to merge.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.lookup import LookupTables, unaligned
from toktier.bpe.segments import hash_pair
from toktier.compact import positions, tiles_of
from toktier.fence import fence
from toktier.pretok.scan import code_point
from toktier.pretok.tables import INSIDE

PART = 3  # a value of `marks` beside INSIDE, START and DROPPED: a piece goes on, but nothing lies across


def fall_apart(t: LookupTables, data: Array, words: Array, code: Array, ask: Array, tile: int) -> Array:
    """uint8[N]: `code` with PART where a piece falls apart.

    Args:
      data: uint8[N] UTF-8 with 0xFF as boundary; words: of `aligned_words`; code: uint8[N] of `marks`.
      ask: bool, are there no pieces that begin inside characters (Falcon's do)?  Else nothing falls apart.
      tile: places a step (static).
    """
    n = data.shape[0]
    before = jnp.concatenate([data[:1], data[:-1]])
    # between two ASCII characters nothing is cut; a boundary in front would make this the start of a piece
    wide = (before >= 0x80) | (data >= 0xC0)
    place, count = positions(ask & wide & ((data & 0xC0) != 0x80) & (code == INSIDE))
    place = jnp.pad(place, (0, tile))
    words = jnp.pad(words, (1, 0))

    def step(k, code):
        at = lax.dynamic_slice(place, (k * tile,), (tile,))
        valid = k * tile + jnp.arange(tile) < count
        index, shift = at >> 2, ((at & 3) << 3).astype(jnp.uint32)
        first, second, third = fence(t.known, tuple(words[index + k] for k in range(3)))
        front, back = unaligned(first, second, shift), unaligned(second, third, shift)
        own, previous = _first_character(back), _last_character(front)
        pair = hash_pair(previous, own).astype(jnp.int32)
        beside = ((front >> 24) << 8 | (back & 0xFF)).astype(jnp.int32)
        pair, beside = fence(t.known, (pair, beside))
        apart = valid & ~(_bit(t.joined, pair) | _bit(t.partial, beside))
        return code.at[jnp.where(apart, at, n)].set(PART, mode="drop", unique_indices=True)

    return lax.fori_loop(0, tiles_of(count, tile), step, code)


def _first_character(word: Array) -> Array:
    """uint32: the code point that begins in the lowest byte of four."""
    return code_point(*((word >> shift) & 0xFF for shift in (0, 8, 16, 24)))


def _last_character(word: Array) -> Array:
    """uint32: the code point that ends in the highest byte of four."""
    goes_on = [(word >> shift) & 0xC0 == 0x80 for shift in (24, 16, 8)]
    back = jnp.where(goes_on[0], jnp.where(goes_on[1], jnp.where(goes_on[2], 0, 8), 16), 24).astype(jnp.uint32)
    return _first_character(word >> back)


def _bit(words: Array, at: Array) -> Array:
    return (words[at >> 5] >> (at & 31).astype(jnp.uint32)) & 1 == 1
