"""BPE of short pieces side by side: one merge a piece and round, nothing moved (traced JAX functions).

A tile is P lanes, each with a piece of at most L start tokens, laid out [L, P] so that every step is a stride-one pass
over the pieces.  A token stays in the slot of its first start token and a bit mask a piece says which slots are alive,
so a merge writes three slots and shifts nothing: the neighbours of a slot are bit scans of the mask.  Rank and slot
share one int32 key, so the minimum over a piece is the lowest rank and, among equals, the leftmost: BPE by definition,
whatever the order of the merges.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.lookup import LookupTables, pair_rank
from toktier.bpe.starts import Starts
from toktier.compact import ranks
from toktier.fence import fence
from toktier.rows import Rows, put

_SLOT_BITS = 7  # pieces of up to 128 start tokens; a rank has 20 bits
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_DONE = 0x7FFFFFFF


class Tile(NamedTuple):
    """token, key: int32[L, P]; alive: uint32[ceil(L / 32), P] bit masks."""

    token: Array
    key: Array
    alive: Array


class Lanes(NamedTuple):
    """The tile; the byte of the text where each slot begins, int32[L, P]; slots of each lane's piece, int32[P]."""

    tile: Tile
    place: Array
    size: Array


def merge_pieces(
    t: LookupTables,
    first: Starts,
    place: Array,
    source: Array,
    pieces: Rows,
    found: Array,
    slots: int,
    lanes: int,
    rounds: int = 1,
) -> Array:
    """BPE of pieces of at most `slots` start tokens, `lanes` at a time.

    A lane that is done waits for the others until three in four of them are; then all of those write out what they
    have and take the next pieces.  So the few pieces that need many merges do not hold up the rest.

    Args:
      first, place: start tokens of a buffer, and where each live one stands there (`live_slots`).
      source: int32[N], where each byte of the buffer stands in the text.
      pieces: number of each piece's first start token and how many it has, with room for `lanes` more.
      found: int32 for each byte of the text, id + 1 at the first byte of every token known so far.
      slots: at most 128; lanes: a multiple of 32.  Both static.
      rounds: that are run between two looks at who is done.  Static.  A GPU pays for a look as for a few rounds; from
        `slots - 1` on, which is the most that a piece can need, the rounds are straight-line code without any.

    Returns:
      `found` with the tokens of these pieces.
    """

    count = pieces.number

    def work_left(carry):
        state, taken, _ = carry
        return (taken < count) | jnp.any(state.size > 0)

    def next_pieces(carry):
        state, taken, found = carry
        idle = _lowest(state.tile.key) == _DONE
        found = _write(state, idle, found)
        state, taken = _load(t, first, place, source, pieces, state, idle, taken)
        least = jnp.where(taken < count, lanes // 4, 0)

        def enough_busy(tile):
            return jnp.sum(_lowest(tile[1]) != _DONE, dtype=jnp.int32) > least

        if rounds >= slots - 1:
            tile = _rounds(t, state.tile, slots - 1)
        else:
            tile = lax.while_loop(enough_busy, lambda tile: _rounds(t, Tile(*tile), rounds), state.tile)
        return state._replace(tile=tile), taken, found

    nothing = jnp.zeros(lanes, jnp.int32)
    tile = Tile(
        jnp.zeros((slots, lanes), jnp.int32),
        jnp.full((slots, lanes), _DONE, jnp.int32),
        jnp.zeros((-(-slots // 32), lanes), jnp.uint32),
    )
    state = Lanes(tile, jnp.zeros((slots, lanes), jnp.int32), nothing)
    return lax.while_loop(work_left, next_pieces, (state, jnp.int32(0), found))[2]


def _write(state: Lanes, idle: Array, found: Array) -> Array:
    """The tokens of the lanes that are done, each at its first byte."""
    slot = jnp.arange(state.tile.token.shape[0], dtype=jnp.int32)[:, None]
    use = idle & (slot < state.size) & _unpack(state.tile.alive, state.tile.token.shape[0])
    return put(found, state.place.reshape(-1), state.tile.token.reshape(-1), use.reshape(-1))


def _load(t, first: Starts, place, source, pieces: Rows, state: Lanes, idle, taken) -> tuple[Lanes, Array]:
    """The next pieces for the lanes that are done."""
    (start, length), count = pieces
    before, wanted = fence(t.known, ranks(idle))
    index = taken + before
    fresh = idle & (index < count)
    index = jnp.where(fresh, index, 0)
    at, size = start[index], jnp.where(fresh, length[index], jnp.where(idle, 0, state.size))
    fresh, at, size = fence(t.known, (fresh, at, size))
    slot = jnp.arange(state.tile.token.shape[0], dtype=jnp.int32)[:, None]
    inside = fresh & (slot < size)
    where = fence(t.known, place[jnp.where(inside, at + slot, 0)])
    rank = jnp.where(slot + 1 < size, first.rank[where], t.product.shape[0] - 1)
    token, key = fence(t.known, (first.token[where], _key(t, rank, slot)))
    old = state.tile
    tile = Tile(
        jnp.where(fresh, token, old.token),
        jnp.where(fresh, key, old.key),
        jnp.where(fresh, _pack(inside), old.alive),
    )
    return Lanes(tile, jnp.where(fresh, source[where], state.place), size), jnp.minimum(taken + wanted, count)


def _key(t: LookupTables, rank: Array, slot: Array) -> Array:
    return jnp.where(rank < t.product.shape[0] - 1, rank << _SLOT_BITS | slot, _DONE)


def _lowest(key: Array) -> Array:
    """Minimum over the slots, as a tree of element-wise minima (XLA's reduce is not vectorized on the CPU)."""
    while key.shape[0] > 1:
        half = key.shape[0] // 2
        key = jnp.minimum(key[:half], key[half:])
    return key[0]


def _rounds(t: LookupTables, tile: Tile, count: int) -> Tile:
    for _ in range(count):
        tile = _round(t, tile)
    return tile


def _round(t: LookupTables, tile: Tile) -> Tile:
    """The lowest merge of every piece; a piece that is done rewrites what it has."""
    best = _lowest(tile.key)
    busy = best != _DONE
    at = jnp.where(busy, best & _SLOT_MASK, 0)
    after, has_after = _next(tile.alive, at)
    behind, has_behind = _next(tile.alive, after)
    before, has_before = _previous(tile.alive, at)
    at, after, behind, before, busy = fence(t.known, (at, after, behind, before, busy))
    lanes = jnp.arange(at.shape[0], dtype=jnp.int32)
    flat = tile.token.reshape(-1)
    width = at.shape[0]
    merged = t.product[jnp.where(busy, best >> _SLOT_BITS, t.product.shape[0] - 1)]
    left, right = flat[before * width + lanes], flat[behind * width + lanes]
    rank = pair_rank(
        t,
        jnp.stack([left, merged]),
        jnp.stack([merged, right]),
        jnp.stack([busy & has_before, busy & has_after & has_behind]),
    )
    left_key, own_key, merged = fence(t.known, (_key(t, rank[0], before), _key(t, rank[1], at), merged))
    slot = jnp.arange(tile.token.shape[0], dtype=jnp.int32)[:, None]
    here, gone, side = busy & (slot == at), busy & (slot == after), busy & has_before & (slot == before)
    key = jnp.where(side, left_key, jnp.where(gone, _DONE, jnp.where(here, own_key, tile.key)))
    words = jnp.arange(tile.alive.shape[0], dtype=jnp.int32)[:, None]
    dies = jnp.where(busy & (after >> 5 == words), jnp.uint32(1) << (after & 31).astype(jnp.uint32), jnp.uint32(0))
    return Tile(jnp.where(here, merged, tile.token), key, tile.alive & ~dies)


def _pack(alive: Array) -> Array:
    """bool[L, P] -> uint32[ceil(L / 32), P]."""
    rows = []
    for first in range(0, alive.shape[0], 32):
        part = alive[first : first + 32].astype(jnp.uint32)
        rows.append((part << jnp.arange(part.shape[0], dtype=jnp.uint32)[:, None]).sum(0, dtype=jnp.uint32))
    return jnp.stack(rows)


def _unpack(words: Array, length: int) -> Array:
    """uint32[W, P] -> bool[L, P]."""
    slot = jnp.arange(length, dtype=jnp.uint32)[:, None]
    return (words[jnp.arange(length) >> 5] >> (slot & 31)) & 1 == 1


def _next(alive: Array, at: Array) -> tuple[Array, Array]:
    """First live slot above each slot: (int32 slot, 0 if there is none, bool exists)."""
    found, exists = jnp.zeros_like(at), jnp.zeros(at.shape, bool)
    for word in range(alive.shape[0] - 1, -1, -1):
        local = at - 32 * word
        # bits strictly above `local`; everything when `local` lies before this word, nothing when behind it
        above = jnp.where(local < 0, jnp.uint32(0xFFFFFFFF), _bits_above(jnp.clip(local, 0, 31).astype(jnp.uint32)))
        rest = jnp.where(local > 31, jnp.uint32(0), alive[word] & above)
        lowest = lax.population_count(~rest & (rest - 1)).astype(jnp.int32)
        found, exists = jnp.where(rest != 0, 32 * word + lowest, found), exists | (rest != 0)
    return found, exists


def _bits_above(bit: Array) -> Array:
    return jnp.uint32(0xFFFFFFFE) << bit


def _previous(alive: Array, at: Array) -> tuple[Array, Array]:
    """Last live slot below each slot: (int32 slot, 0 if there is none, bool exists)."""
    found, exists = jnp.zeros_like(at), jnp.zeros(at.shape, bool)
    for word in range(alive.shape[0]):
        local = at - 32 * word
        below = (jnp.uint32(1) << jnp.clip(local, 0, 31).astype(jnp.uint32)) - 1
        below = jnp.where(local > 31, jnp.uint32(0xFFFFFFFF), below)
        rest = jnp.where(local <= 0, jnp.uint32(0), alive[word] & below)
        highest = 31 - lax.clz(rest).astype(jnp.int32)
        found, exists = jnp.where(rest != 0, 32 * word + highest, found), exists | (rest != 0)
    return found, exists
