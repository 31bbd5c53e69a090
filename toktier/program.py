"""The device program: bytes in, ids and byte ends out, one traced function of static shape.

    marks      where pieces start (pretok/scan.py), and where they fall apart (bpe/apart.py)
    look-up    92 to 99 % of what that leaves is one token: found by a perfect hash of its bytes
    misses     the rest: equal ones are merged once (claims), and only their bytes go on (bpe/gathered.py)
    merges     BPE rounds: short pieces in tiles (bpe/merge_tiles.py), long ones in one flat array (bpe/merge_flat.py)
    output     every token stands as id + 1 in the slot of its first byte; one compaction gives ids and ends

Capacities are worst cases (every byte a piece), so nothing can overflow; work follows the content, because every stage
runs over fixed tiles as often as there is something in them.  All counts stay on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.apart import PART, fall_apart
from toktier.bpe.gathered import gather
from toktier.bpe.lookup import LookupTables, aligned_words, find_long_piece, find_piece, words_at
from toktier.bpe.merge_flat import merge_long
from toktier.bpe.merge_tiles import merge_pieces
from toktier.bpe.perfect_hash import hash_words
from toktier.bpe.starts import Slots, live_slots, starts
from toktier.bpe.tables import WORD_BYTES
from toktier.compact import exclusive_sum, positions, ranks, tiles_of
from toktier.fence import fence
from toktier.pretok.scan import BOUNDARY_BYTE as BOUNDARY
from toktier.pretok.scan import ScanTables, marks
from toktier.pretok.tables import START
from toktier.rows import Rows, no_rows, put

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
    long: int
    flat: int
    merges: tuple[int, ...]  # lanes of each class, multiples of 32
    rounds: int = 1  # of merges between two looks at which pieces are done (merge_tiles.merge_pieces)


class Kept(NamedTuple):
    """Of equal pieces that are no token one: start, length, offset (the lengths in front); and all their bytes."""

    pieces: Rows
    total: Array


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
    words, whole = aligned_words(data), ~jnp.any(t.scan.inner != 0)
    code = fall_apart(t.bpe, data, words, marks(t.scan, data), whole, tiles.misses)
    found, missed = _look_up(t.bpe, data, words, code, tiles)
    found, kept, copies = _sort_out(t.bpe, words, found, missed, tiles)
    bytes_of = gather(data, kept.pieces, kept.total, tiles.starts)
    first = starts(t.bpe, bytes_of.data, bytes_of.head, bytes_of.total, tiles.starts)
    slots = live_slots(first, bytes_of.total, tiles.starts)
    classes, long = _classes(kept.pieces, slots, tiles)
    for size, lanes, pieces in zip(_CLASSES, tiles.merges, classes, strict=True):
        found = merge_pieces(t.bpe, first, slots.place, bytes_of.source, pieces, found, size, lanes, tiles.rounds)
    found = lax.cond(
        long.number > 0,
        lambda f: merge_long(t.bpe, bytes_of, first, long, f, tiles.flat, tiles.starts),
        lambda f: f,
        found,
    )
    return _copy(found, copies, tiles.copies)


def piece_marks(t: ScanTables, data: Array) -> tuple[Array, Array]:
    """Byte offsets of the pieces: int32[N] whose first `count` entries are valid, and `count`."""
    return positions(marks(t, data) == START)


def _look_up(t: LookupTables, data: Array, words: Array, code: Array, tiles: Tiles) -> tuple[Array, Rows]:
    """Whole-piece look-up of all pieces of at most 16 bytes.

    Returns:
      int32[N], id + 1 where one starts; and of all other pieces start, and length << 1 | is it only part of a piece.
    """
    n, tile = data.shape[0], tiles.pieces
    boundary = data == BOUNDARY
    repeated = boundary & jnp.concatenate([jnp.zeros(1, bool), boundary[:-1]])
    mark, count = positions((code != 0) & ~repeated)
    mark = jnp.pad(mark, (0, tile + 1))

    def step(k, carry):
        found, missed = carry
        edges = lax.dynamic_slice(mark, (k * tile,), (tile + 1,))
        kind, start = code[edges], edges[:-1]
        # the last mark is the boundary at the end of the buffer, so every piece has a mark behind it
        valid = (k * tile + jnp.arange(tile) < count - 1) & ((kind[:-1] == START) | (kind[:-1] == PART))
        part = (kind[:-1] == PART) | (kind[1:] == PART)
        start, length, valid, part = fence(t.known, (start, jnp.where(valid, edges[1:] - start, 0), valid, part))
        short = valid & (length <= WORD_BYTES)
        key = fence(t.known, words_at(words, start, jnp.where(short, length, 0)))
        token, hit = find_piece(t, key, length, part)
        token, hit = fence(t.known, (token, hit & short))
        return put(found, start, token, hit), missed.append((start, length << 1 | part), valid & ~hit)

    return lax.fori_loop(0, tiles_of(count, tile), step, (jnp.zeros(n, jnp.int32), no_rows(n + tile, 2)))


def _claim(t: LookupTables, words: Array, missed: Rows, n: int, tile: int) -> tuple[Array, Rows]:
    """Short pieces lay claim to the slots of their hashes, and long ones go to a list of their own.

    Returns:
      int32[2**k]: position << 5 | length of some short piece that hashes to each slot; and the rows of the long ones.
    """

    def step(k, carry):
        claims, long = carry
        (start, packed), valid = missed.block(k, tile)
        length = packed >> 1
        short = valid & (length <= WORD_BYTES)
        key = fence(t.known, words_at(words, start, jnp.where(short, length, 0)))
        at = jnp.where(short, _claim_slot(t, key, claims), claims.shape[0])
        claims = claims.at[at].set(start << _LENGTH_BITS | length, mode="drop")
        return claims, long.append((start, packed), valid & ~short)

    carry = (jnp.zeros(max(256, n // 8), jnp.int32), no_rows(n // WORD_BYTES + tile, 2))
    return lax.fori_loop(0, tiles_of(missed.number, tile), step, carry)


def _claim_slot(t: LookupTables, key: tuple[Array, ...], claims: Array) -> Array:
    return (hash_words(key, t.piece.start)[1] & jnp.uint32(claims.shape[0] - 1)).astype(jnp.int32)


def _sort_out(t: LookupTables, words: Array, found: Array, missed: Rows, tiles: Tiles) -> tuple[Array, Kept, Rows]:
    """Of equal short pieces one is kept; long pieces are looked up, and kept where they are no token.

    Returns:
      found; the kept pieces; and the copies: rows of `start << 5 | length` and where the kept one starts.
    """
    n, tile = found.shape[0], tiles.misses
    claims, long = _claim(t, words, missed, n, tile)

    def keep(kept: Kept, start: Array, length: Array, flags: Array) -> Kept:
        sizes = jnp.where(flags, length, 0)
        offset = kept.total + exclusive_sum(sizes)
        return Kept(kept.pieces.append((start, length, offset), flags), kept.total + sizes.sum(dtype=jnp.int32))

    def of_short(k, carry):
        kept, copies = carry
        (start, packed), valid = missed.block(k, tile)
        length = packed >> 1
        valid &= length <= WORD_BYTES
        key = fence(t.known, words_at(words, start, jnp.where(valid, length, 0)))
        claim = claims[_claim_slot(t, key, claims)]
        origin, claimed = claim >> _LENGTH_BITS, claim & ((1 << _LENGTH_BITS) - 1)
        same = valid & (claimed == length) & (origin != start)
        for mine, theirs in zip(key, words_at(words, origin, jnp.where(same, claimed, 0)), strict=True):
            same &= mine == theirs
        same = fence(t.known, same)
        copies = copies.append((start << _LENGTH_BITS | length, origin), same)
        return keep(kept, start, length, valid & ~same), copies

    def of_long(k, carry):
        found, kept = carry
        (start, packed), valid = long.block(k, tiles.long)
        length = packed >> 1
        token, whole = find_long_piece(t.chain, words, start, jnp.where(valid, length, 0), packed & 1 == 1)
        token, whole = fence(t.known, (token, whole & valid))
        return put(found, start, token, whole), keep(kept, start, length, valid & ~whole)

    margin = max(tile, tiles.long, tiles.copies)
    kept = Kept(no_rows(n // 2 + margin, 3), jnp.int32(0))
    carry = (kept, no_rows(n // 2 + margin, 2))
    kept, copies = lax.fori_loop(0, tiles_of(missed.number, tile), of_short, carry)
    found, kept = lax.fori_loop(0, tiles_of(long.number, tiles.long), of_long, (found, kept))
    return found, kept, copies


def _classes(pieces: Rows, slots: Slots, tiles: Tiles) -> tuple[list[Rows], Rows]:
    """The kept pieces by start tokens.

    Returns:
      for each class the rows of its pieces, number of the first start token and how many; and the rows of those that
      have more, by `offset` and length in bytes.
    """
    n, tile = slots.place.shape[0], tiles.misses
    # a piece of one byte is a token, so the least length a bin holds is 2, or one more than the class below
    least = (2, *(edge + 1 for edge in _CLASSES))
    margin = max(tile, *tiles.merges)
    rooms = [n // low + margin for low in least]
    bases = [sum(rooms[:k]) for k in range(len(least))]
    total = sum(rooms)
    lower = jnp.array((0, *_CLASSES), jnp.int32)[:, None]
    upper = jnp.array((*_CLASSES, 0x7FFFFFFF), jnp.int32)[:, None]

    def step(k, carry):
        first, second, counts = carry
        (_, length, offset), valid = pieces.block(k, tile)
        number = slots.number(offset)
        size = slots.number(jnp.where(valid, offset + length, 0)) - number
        member = valid & (size > lower) & (size <= upper)
        before, added = ranks(member)
        place = jnp.where(member, jnp.array(bases, jnp.int32)[:, None] + counts[:, None] + before, 0).sum(0)
        place = jnp.where(member.any(0), place, total)
        few = size <= _CLASSES[-1]
        first = first.at[place].set(jnp.where(few, number, offset), mode="drop", unique_indices=True)
        second = second.at[place].set(jnp.where(few, size, length), mode="drop", unique_indices=True)
        return first, second, counts + added

    empty = jnp.zeros(total, jnp.int32)
    carry = (empty, empty, jnp.zeros(len(least), jnp.int32))
    first, second, counts = lax.fori_loop(0, tiles_of(pieces.number, tile), step, carry)
    found = [
        Rows((first[base : base + room], second[base : base + room]), counts[k])
        for k, (base, room) in enumerate(zip(bases, rooms, strict=True))
    ]
    return found[:-1], found[-1]


def _copy(found: Array, copies: Rows, tile: int) -> Array:
    """Every piece that equals a representative gets the representative's tokens."""
    slot = jnp.arange(WORD_BYTES, dtype=jnp.int32)[:, None]

    def step(k, found):
        (packed, origin), valid = copies.block(k, tile)
        start = packed >> _LENGTH_BITS
        inside = valid & (slot < (packed & ((1 << _LENGTH_BITS) - 1)))
        value = found[jnp.where(inside, origin + slot, 0)]
        write = inside & (value > 0)
        return put(found, (start + slot).reshape(-1), value.reshape(-1) - 1, write.reshape(-1))

    return lax.fori_loop(0, tiles_of(copies.number, tile), step, found)
