"""The device program: bytes in, ids and byte ends out, one traced function of static shape.

    marks      where pieces start (pretok/scan.py)
    look-up    92 to 99 % of the pieces are one token: found by a perfect hash of their bytes
    misses     the rest: equal ones are merged once (claims), then sorted by their start tokens into tiles
    merges     BPE rounds: short pieces in tiles (bpe/merge_tiles.py), long ones in one flat array (bpe/merge_flat.py)
    output     every token stands as id + 1 in the slot of its first byte; one compaction gives ids and ends

Capacities are worst cases (every byte a piece), so nothing can overflow; work follows the content, because every stage
runs over fixed tiles as often as there is something in them.  All counts stay on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.lookup import LookupTables, aligned_words, find_long_piece, find_piece, words_at
from toktier.bpe.merge_flat import merge_long
from toktier.bpe.merge_tiles import merge_pieces
from toktier.bpe.perfect_hash import hash_words
from toktier.bpe.starts import Slots, live_slots, starts
from toktier.bpe.tables import WORD_BYTES
from toktier.compact import positions, ranks
from toktier.fence import fence
from toktier.pretok.scan import BOUNDARY_BYTE as BOUNDARY
from toktier.pretok.scan import ScanTables, marks
from toktier.pretok.tables import START

_CLASSES = (16, 32, 64, 128)  # start tokens; pieces of more go to the flat array
_LENGTH_BITS = 5  # a claim holds a position and a length of at most 16


class DeviceTables(NamedTuple):
    """Everything the program reads: a pytree of arrays, so it can be a jit argument."""

    scan: ScanTables
    bpe: LookupTables


class Tiles(NamedTuple):
    """Elements a step of each stage: static, chosen by backend (a GPU wants one wide step, a CPU its cache)."""

    pieces: int
    misses: int
    copies: int
    starts: int
    flat: int
    merges: tuple[int, ...]  # lanes of each class, multiples of 32
    rounds: int = 1  # of merges between two looks at which pieces are done (merge_tiles.merge_pieces)


class Pieces(NamedTuple):
    """start, length: int32[capacity], of which the first `number` (int32) are valid."""

    start: Array
    length: Array
    number: Array


def encode(t: DeviceTables, data: Array, tiles: Tiles) -> tuple[Array, Array, Array]:
    """ids of a buffer.

    Args:
      data: uint8[N] UTF-8 with 0xFF as boundary; N a multiple of 256; the last byte is a boundary.
      tiles: static.

    Returns:
      ids int32[N], ends int32[N] (exclusive byte ends), count int32: the first `count` entries are valid.
    """
    found = tokens_at(t, data, tiles)
    place, count = positions(found > 0)
    ids = found[place] - 1
    return ids, place + t.bpe.length[ids], count


def tokens_at(t: DeviceTables, data: Array, tiles: Tiles) -> Array:
    """int32[N]: id + 1 at the first byte of every token, 0 elsewhere; arguments as for `encode`."""
    code = marks(t.scan, data)
    words = aligned_words(data)
    found, misses, claims = _look_up(t.bpe, data, words, code, tiles)
    first = starts(t.bpe, data, code == START, tiles.starts)
    slots = live_slots(first, data)
    found, classes, long, copies = _sort_out(t.bpe, words, found, misses, claims, slots, tiles)
    for size, lanes, (start, length, number) in zip(_CLASSES, tiles.merges, classes, strict=True):
        found = merge_pieces(t.bpe, first, slots.place, start, length, number, found, size, lanes, tiles.rounds)
    found = lax.cond(
        long.number > 0,
        lambda f: merge_long(t.bpe, data, first, long.start, long.length, long.number, f, tiles.flat, tiles.starts),
        lambda f: f,
        found,
    )
    return _copy(found, copies, tiles.copies)


def piece_marks(t: ScanTables, data: Array) -> tuple[Array, Array]:
    """Byte offsets of the pieces: int32[N] whose first `count` entries are valid, and `count`."""
    return positions(marks(t, data) == START)


def _tiles_of(count: Array, tile: int) -> Array:
    return (count + (tile - 1)) // tile


def _pieces(capacity: int, tile: int) -> Pieces:
    room = capacity + tile
    return Pieces(jnp.zeros(room, jnp.int32), jnp.zeros(room, jnp.int32), jnp.int32(0))


def _block(pieces: Pieces, k: Array, tile: int) -> tuple[Array, Array, Array]:
    """start, length, valid of the k-th tile; length 0 where not valid."""
    start = lax.dynamic_slice(pieces.start, (k * tile,), (tile,))
    valid = k * tile + jnp.arange(tile) < pieces.number
    return start, jnp.where(valid, lax.dynamic_slice(pieces.length, (k * tile,), (tile,)), 0), valid


def _append(pieces: Pieces, start: Array, length: Array, flags: Array) -> Pieces:
    """Appends the flagged elements of a tile."""
    before, count = ranks(flags)
    at = jnp.where(flags, pieces.number + before, pieces.start.shape[0])
    return Pieces(
        pieces.start.at[at].set(start, mode="drop", unique_indices=True),
        pieces.length.at[at].set(length, mode="drop", unique_indices=True),
        pieces.number + count,
    )


def _put(found: Array, at: Array, token: Array, flags: Array) -> Array:
    return found.at[jnp.where(flags, at, found.shape[0])].set(token + 1, mode="drop", unique_indices=True)


def _look_up(t: LookupTables, data: Array, words: Array, code: Array, tiles: Tiles) -> tuple[Array, Pieces, Array]:
    """Whole-piece look-up of all pieces.

    Returns:
      found int32[N]; the pieces that are no token or longer than 16 bytes; claims int32[2**k]: position and length of
      some piece that hashes to each slot.
    """
    n, tile = data.shape[0], tiles.pieces
    boundary = data == BOUNDARY
    repeated = boundary & jnp.concatenate([jnp.zeros(1, bool), boundary[:-1]])
    mark, count = positions((code != 0) & ~repeated)
    mark = jnp.pad(mark, (0, tile + 1))
    claims = jnp.zeros(max(256, n // 8), jnp.int32)

    def step(k, carry):
        found, misses, claims = carry
        edges = lax.dynamic_slice(mark, (k * tile,), (tile + 1,))
        start = edges[:-1]
        # the last mark is the boundary at the end of the buffer, so every piece has a mark behind it
        valid = (k * tile + jnp.arange(tile) < count - 1) & (code[start] == START)
        start, length, valid = fence(t.known, (start, jnp.where(valid, edges[1:] - start, 0), valid))
        short = valid & (length <= WORD_BYTES)
        key = fence(t.known, words_at(words, start, jnp.where(short, length, 0)))
        token, hit = find_piece(t, key, length)
        hit &= short
        missed = valid & ~hit
        slot = _claim_slot(t, key, claims)
        claim = start << _LENGTH_BITS | length
        claims = claims.at[jnp.where(missed & short, slot, claims.shape[0])].set(claim, mode="drop")
        return _put(found, start, token, hit), _append(misses, start, length, missed), claims

    carry = (jnp.zeros(n, jnp.int32), _pieces(n, tile), claims)
    return lax.fori_loop(0, _tiles_of(count, tile), step, carry)


def _claim_slot(t: LookupTables, key: tuple[Array, ...], claims: Array) -> Array:
    return (hash_words(key, t.piece.start)[1] & jnp.uint32(claims.shape[0] - 1)).astype(jnp.int32)


def _sort_out(
    t: LookupTables, words: Array, found: Array, misses: Pieces, claims: Array, slots: Slots, tiles: Tiles
) -> tuple[Array, list[Pieces], Pieces, Pieces]:
    """Long whole pieces are looked up, equal short ones keep one representative, the rest is sorted by start tokens.

    Returns:
      found; for each class its Pieces in start tokens (the number of the first, and how many); the longer ones in
      bytes; and the copies: Pieces whose `start` is `start << 5 | length` and whose `length` is where the
      representative starts.
    """
    n, tile = found.shape[0], tiles.misses
    # a piece of one byte is a token, so the least length a bin holds is 2, or one more than the class below
    least = (2, *(edge + 1 for edge in _CLASSES), 2)
    bins = len(least)
    margin = max(tiles.misses, tiles.copies, *tiles.merges)
    rooms = [n // low + margin for low in least]
    bases = [sum(rooms[:k]) for k in range(bins)]
    total = sum(rooms)
    lower = jnp.array((0, *_CLASSES), jnp.int32)[:, None]
    upper = jnp.array((*_CLASSES, 0x7FFFFFFF), jnp.int32)[:, None]

    def step(k, carry):
        found, first, second, counts = carry
        start, length, valid = _block(misses, k, tile)
        short = valid & (length <= WORD_BYTES)
        key = fence(t.known, words_at(words, start, jnp.where(short, length, 0)))
        claim = claims[_claim_slot(t, key, claims)]
        origin, claimed = claim >> _LENGTH_BITS, claim & ((1 << _LENGTH_BITS) - 1)
        same = short & (claimed == length) & (origin != start)
        for mine, theirs in zip(key, words_at(words, origin, jnp.where(same, claimed, 0)), strict=True):
            same &= mine == theirs
        token, whole = lax.cond(
            jnp.any(valid & ~short),
            lambda: find_long_piece(t.chain, words, start, jnp.where(valid & ~short, length, 0)),
            lambda: (jnp.zeros(tile, jnp.int32), jnp.zeros(tile, bool)),
        )
        whole &= valid & ~short
        found = _put(found, start, token, whole)
        number = slots.number(start)
        size = slots.number(jnp.where(valid, start + length, 0)) - number
        number, size = fence(t.known, (number, size))
        member = jnp.concatenate([(valid & ~same & ~whole) & (size > lower) & (size <= upper), same[None]])
        before, added = ranks(member)
        place = jnp.where(member, jnp.array(bases, jnp.int32)[:, None] + counts[:, None] + before, 0).sum(0)
        place = jnp.where(member.any(0), place, total)
        few = size <= _CLASSES[-1]
        one = jnp.where(same, start << _LENGTH_BITS | length, jnp.where(few, number, start))
        first = first.at[place].set(one, mode="drop")
        second = second.at[place].set(jnp.where(same, origin, jnp.where(few, size, length)), mode="drop")
        return found, first, second, counts + added

    carry = (found, jnp.zeros(total, jnp.int32), jnp.zeros(total, jnp.int32), jnp.zeros(bins, jnp.int32))
    found, first, second, counts = lax.fori_loop(0, _tiles_of(misses.number, tile), step, carry)
    pieces = [
        Pieces(first[base : base + room], second[base : base + room], counts[k])
        for k, (base, room) in enumerate(zip(bases, rooms, strict=True))
    ]
    return found, pieces[: bins - 2], pieces[bins - 2], pieces[bins - 1]


def _copy(found: Array, copies: Pieces, tile: int) -> Array:
    """Every piece that equals a representative gets the representative's tokens."""
    slot = jnp.arange(WORD_BYTES, dtype=jnp.int32)[:, None]

    def step(k, found):
        packed, origin, valid = _block(copies, k, tile)
        start = packed >> _LENGTH_BITS
        inside = valid & (slot < (packed & ((1 << _LENGTH_BITS) - 1)))
        value = found[jnp.where(inside, origin + slot, 0)]
        write = inside & (value > 0)
        return _put(found, (start + slot).reshape(-1), value.reshape(-1) - 1, write.reshape(-1))

    return lax.fori_loop(0, _tiles_of(copies.number, tile), step, found)
