"""The tokens BPE starts from, and the ranks of their first merges, for every byte of a buffer (traced JAX functions).

A byte that is no token of its own, because a whole character starts at an earlier byte (char_start.py), is a dead slot.
One pass over the buffer is cheaper than one over padded pieces: neighbours are shifts, and nothing is looked up twice.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.char_start import AFTER_ASCII, AFTER_MULTI, AT_HEAD, TOKEN_MASK
from toktier.bpe.lookup import LookupTables, pair_rank
from toktier.compact import packed, positions_of, rank_at, tiles_of
from toktier.fence import fence

_MARGIN = 8  # bytes read beyond a tile: a character before it, and behind it the next token's whole character


class Starts(NamedTuple):
    """token: int32[N], -1 at dead slots; rank: int32[N], of the merge with the next live one, R where there is none.

    Neither knows where a piece ends: the reader must check that the next slot still belongs to it.
    """

    token: Array
    rank: Array


class Slots(NamedTuple):
    """The live slots of a buffer, numbered from left to right.

    place: int32[N], the byte of each.  words, before: the live bytes as `compact.packed` has them.
    """

    place: Array
    words: Array
    before: Array

    def number(self, byte: Array) -> Array:
        """How many live slots there are before each byte (int32, up to `total` and at most N - 1)."""
        return rank_at(self.words, self.before, byte)


def live_slots(first: Starts, total: Array, tile: int) -> Slots:
    """Numbers the live slots among the first `total` bytes; in plain ASCII, where all are, nothing has to move.

    `tile`: bytes a step (static, a multiple of 32 that divides N).
    """
    n = first.token.shape[0]

    def step(k, carry):
        words, before, count = carry
        token = lax.dynamic_slice(first.token, (k * tile,), (tile,))
        some, ahead, here = packed((token >= 0) & (k * tile + jnp.arange(tile) < total))
        at = (k * (tile // 32),)
        words = lax.dynamic_update_slice(words, some, at)
        return words, lax.dynamic_update_slice(before, ahead + count, at), count + here

    carry = (jnp.zeros(n // 32, jnp.uint32), jnp.zeros(n // 32, jnp.int32), jnp.int32(0))
    words, before, count = lax.fori_loop(0, tiles_of(total, tile), step, carry)
    # the place behind the last byte may lie behind the last tile, and is asked for its number too
    before = before.at[tiles_of(total, tile) * (tile // 32)].set(count, mode="drop")
    place = lax.cond(
        count == total,
        lambda w, b: jnp.arange(n, dtype=jnp.int32),
        lambda w, b: positions_of(w, b, tiles_of(total, 32)),
        words,
        before,
    )
    return Slots(place, words, before)


def starts(t: LookupTables, data: Array, head: Array, total: Array, tile: int) -> Starts:
    """Start tokens of the first `total` bytes.

    Args:
      data: uint8[N]; head: bool[N], a piece starts here; total: int32; tile: bytes a step (static, divides N).
    """
    n = data.shape[0]
    padded = jnp.pad(data, (_MARGIN, _MARGIN), constant_values=255)
    heads = jnp.pad(head, (_MARGIN, _MARGIN))
    here = slice(_MARGIN, _MARGIN + tile)

    def of_bytes(byte, _):
        token = t.byte_token[byte[here]]
        rank = t.byte_pair_rank[byte[here] << 8 | byte[_MARGIN + 1 : _MARGIN + tile + 1]]
        return token, rank

    def of_characters(byte, first):
        token, width = fence(t.known, _start_tokens(t, byte, first))
        live = token >= 0
        after = jnp.select([width == k for k in (1, 2, 3)], [_up(token, k) for k in (1, 2, 3)], _up(token, 4))
        after = fence(t.known, after)
        rank = pair_rank(t, token, after, live & (after >= 0))
        return token[here], rank[here]

    def step(k, carry):
        byte = lax.dynamic_slice(padded, (k * tile,), (tile + 2 * _MARGIN,)).astype(jnp.int32)
        first = lax.dynamic_slice(heads, (k * tile,), (tile + 2 * _MARGIN,))
        # padding looks like 0xFF, which is no ASCII either: only what text can hold counts
        wide = jnp.any((byte >= 0x80) & (byte < 0xFF))
        block = lax.cond(wide, of_characters, of_bytes, byte, first)
        return tuple(lax.dynamic_update_slice(x, y, (k * tile,)) for x, y in zip(carry, block, strict=True))

    empty = jnp.zeros(n, jnp.int32)
    return Starts(*lax.fori_loop(0, tiles_of(total, tile), step, (empty, empty)))


def _start_tokens(t: LookupTables, byte: Array, head: Array) -> tuple[Array, Array]:
    """int32 token (-1: dead slot) and int32 width in bytes of what starts at each byte."""
    b1, b2, b3 = (_up(byte, k) & 63 for k in (1, 2, 3))
    two, three = (byte & 31) << 6 | b1, (byte & 15) << 12 | b1 << 6 | b2
    point = jnp.where(byte < 0xE0, two, jnp.where(byte < 0xF0, three, (byte & 7) << 18 | b1 << 12 | b2 << 6 | b3))
    lead = (byte >= 0xC2) & (byte < 0xF5)
    point = jnp.where(lead, jnp.minimum(point, 0x10FFFF), 0)
    value = fence(t.known, t.char_start[t.char_block[point >> 8] * 256 + (point & 255)])
    flag = jnp.where(head, AT_HEAD, jnp.where(_down(byte, 1) < 0x80, AFTER_ASCII, AFTER_MULTI))
    long = jnp.where(byte < 0xE0, 2, jnp.where(byte < 0xF0, 3, 4))
    # a piece may begin inside a character (Falcon); then there is no such character to start from
    split = _up(head, 1) | (_up(head, 2) & (long >= 3)) | (_up(head, 3) & (long == 4))
    safe = lead & ((value & flag) != 0) & ~split
    width = jnp.where(safe, long, 1)
    width = fence(t.known, width)
    dead = (_down(width, 1) > 1) | (_down(width, 2) > 2) | (_down(width, 3) > 3)
    return jnp.where(dead, -1, jnp.where(safe, value & TOKEN_MASK, t.byte_token[byte])), width


def _down(x: Array, by: int) -> Array:
    """x[i - by] at i: what stands `by` bytes earlier (0 before the beginning)."""
    return jnp.concatenate([jnp.zeros(by, x.dtype), x[:-by]])


def _up(x: Array, by: int) -> Array:
    """x[i + by] at i: what stands `by` bytes later (0 behind the end)."""
    return jnp.concatenate([x[by:], jnp.zeros(by, x.dtype)])
