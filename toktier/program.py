"""The device program: bytes in, ids and byte ends out, one traced function of static shape.

    marks      where pieces start (pretok/scan.py)
    look-up    92 to 99 % of the pieces are one token: found by a perfect hash of their bytes
    misses     the rest: equal ones are merged once (claims), then sorted by length into tiles
    merges     BPE rounds on tiles of short pieces (bpe/merge_tiles.py), on one flat array for long ones (bpe/merge_flat.py)
    output     every token stands as id + 1 in the slot of its first byte; one compaction gives ids and ends

Capacities are worst cases (every byte a piece), so nothing can overflow; work follows the content, because every stage runs
over fixed tiles as often as there is something in them.  All counts stay on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.lookup import LookupTables, aligned_words, find_long_piece, find_piece, words_at
from toktier.bpe.merge_flat import merge_long
from toktier.bpe.merge_tiles import merge_tile
from toktier.bpe.perfect_hash import hash_words
from toktier.bpe.tables import WORD_BYTES
from toktier.compact import append, positions
from toktier.pretok.scan import START, ScanTables, marks
from toktier.pretok.scan import BOUNDARY_BYTE as BOUNDARY

_LENGTH_CLASSES = (8, 16, 32, 64, 128)  # bytes; longer pieces go to the flat array
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
    flat: int
    merges: tuple[int, ...]  # pieces a tile, one for each length class


class Pieces(NamedTuple):
    """start, length: int32[capacity]; count: int32."""

    start: Array
    length: Array
    count: Array


def encode(t: DeviceTables, data: Array, tiles: Tiles) -> tuple[Array, Array, Array]:
    """ids of a buffer.

    Args:
      data: uint8[N] UTF-8 with 0xFF as boundary; N a multiple of 256; the last byte is a boundary.
      tiles: static.

    Returns:
      ids int32[N], ends int32[N] (exclusive byte ends), count int32: the first `count` entries are valid.
    """
    code = marks(t.scan, data)
    words = aligned_words(data)
    found, misses, claims = _look_up(t.bpe, data, words, code, tiles)
    found, classes, long, copies = _sort_out(t.bpe, words, found, misses, claims, tiles)
    for length, width, pieces in zip(_LENGTH_CLASSES, tiles.merges, classes, strict=True):
        found = _merge_class(t.bpe, data, found, pieces, length, width)
    found = lax.cond(
        long.count > 0,
        lambda f: merge_long(t.bpe, data, long.start, long.length, long.count, f, tiles.flat),
        lambda f: f,
        found,
    )
    found = _copy(found, copies, tiles.copies)
    place, count = positions(found > 0)
    ids = found[place] - 1
    return ids, place + t.bpe.length[ids], count


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
    valid = k * tile + jnp.arange(tile) < pieces.count
    return start, jnp.where(valid, lax.dynamic_slice(pieces.length, (k * tile,), (tile,)), 0), valid


def _append(pieces: Pieces, start: Array, length: Array, flags: Array) -> Pieces:
    """Appends the flagged elements of a tile."""
    index, count = positions(flags)
    return Pieces(
        append(pieces.start, pieces.count, start[index]),
        append(pieces.length, pieces.count, length[index]),
        pieces.count + count,
    )


def _put(found: Array, at: Array, token: Array, flags: Array) -> Array:
    return found.at[jnp.where(flags, at, found.shape[0])].set(token + 1, mode="drop", unique_indices=True)


def _look_up(t: LookupTables, data: Array, words: Array, code: Array, tiles: Tiles) -> tuple[Array, Pieces, Array]:
    """Whole-piece look-up of all pieces.

    Returns:
      found int32[N]; the pieces that are no token or longer than 16 bytes; claims int32[2**k]: position and length of some
      piece that hashes to each slot.
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
        length = jnp.where(valid, edges[1:] - start, 0)
        short = valid & (length <= WORD_BYTES)
        key = words_at(words, start, jnp.where(short, length, 0))
        token, hit = find_piece(t.piece, key, length)
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


def _sort_out(t: LookupTables, words: Array, found: Array, misses: Pieces, claims: Array, tiles: Tiles):
    """Long whole pieces are looked up, equal short ones keep one representative, the rest is sorted by length."""
    n, tile = found.shape[0], tiles.misses
    classes = []
    for low, width in zip((1, *_LENGTH_CLASSES), tiles.merges, strict=False):
        classes.append(_pieces(n // (low + 1), max(width, tile)))
    long = _pieces(n // (_LENGTH_CLASSES[-1] + 1) + 1, tile)
    # a copy remembers where its representative starts in place of its length; the length is the representative's
    copies = (_pieces(n // 2, max(tile, tiles.copies)), jnp.zeros(n // 2 + max(tile, tiles.copies), jnp.int32))

    def step(k, carry):
        found, classes, long, (copies, origins) = carry
        start, length, valid = _block(misses, k, tile)
        short = valid & (length <= WORD_BYTES)
        key = words_at(words, start, jnp.where(short, length, 0))
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
        rest = valid & ~same & ~whole
        bounds = (0, *_LENGTH_CLASSES)
        classes = tuple(
            _append(c, start, length, rest & (length > low) & (length <= high))
            for c, low, high in zip(classes, bounds, bounds[1:], strict=False)
        )
        long = _append(long, start, length, rest & (length > _LENGTH_CLASSES[-1]))
        index, _ = positions(same)
        origins = append(origins, copies.count, origin[index])
        return found, classes, long, (_append(copies, start, length, same), origins)

    carry = (found, tuple(classes), long, copies)
    return lax.fori_loop(0, _tiles_of(misses.count, tile), step, carry)


def _merge_class(t: LookupTables, data: Array, found: Array, pieces: Pieces, length: int, width: int) -> Array:
    """BPE of the pieces of one length class, tile by tile."""
    slot = jnp.arange(length, dtype=jnp.int32)[:, None]

    def step(k, found):
        start, size, _ = _block(pieces, k, width)
        inside = slot < size
        at = jnp.where(inside, start + slot, 0)
        token, alive = merge_tile(t, data[at].astype(jnp.int32), inside)
        return _put(found, at.reshape(-1), token.reshape(-1), (alive & inside).reshape(-1))

    return lax.fori_loop(0, _tiles_of(pieces.count, width), step, found)


def _copy(found: Array, copies: tuple[Pieces, Array], tile: int) -> Array:
    """Every piece that equals a representative gets the representative's tokens."""
    pieces, origins = copies
    slot = jnp.arange(WORD_BYTES, dtype=jnp.int32)[:, None]

    def step(k, found):
        start, length, _ = _block(pieces, k, tile)
        origin = lax.dynamic_slice(origins, (k * tile,), (tile,))
        inside = slot < length
        value = found[jnp.where(inside, origin + slot, 0)]
        write = inside & (value > 0)
        return _put(found, (start + slot).reshape(-1), value.reshape(-1) - 1, write.reshape(-1))

    return lax.fori_loop(0, _tiles_of(pieces.count, tile), step, found)
