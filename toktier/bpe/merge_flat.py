"""BPE of long pieces, all in one flat array, many merges a round (traced JAX functions).

A piece of a megabyte (one letter, spaces, Chinese without punctuation) must not take a round a merge.  Here a round
makes every merge that is certain to happen whatever the rest does (docs/merges.md):

* the lowest rank of the piece, at all its leftmost non-overlapping occurrences if the rank is *orderly* (every merge
  that uses its product ranks above it), else at its first occurrence and nothing else in that piece;
* a strict local minimum of an orderly rank r whose two tokens no merge of rank below r can reach: a token is out of
  reach if no merge of such a rank joins it on that side with anything that has the byte that stands there, or if its
  neighbour cannot change before r either, which is looked up a few tokens far.

Pieces stand one behind the other with a separator (-1) in front of each and behind the last.  Work follows the number
of tokens left, not the capacity: every pass runs over fixed tiles as often as there are tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.gathered import Gathered
from toktier.bpe.lookup import LookupTables, pair_rank, reach
from toktier.bpe.starts import Starts
from toktier.compact import append, positions, ranks, tiles_of
from toktier.fence import fence
from toktier.rows import Rows, put

_REACH = 16  # how many neighbours a certificate may lean on; at 3, a megabyte of random letters took minutes
_HALO = 24  # tokens read beyond a tile on either side: the reach and the next pair
_UNKNOWN = -1  # rank not looked up since a neighbour changed
_SEPARATOR = -1
_NOTHING = 0xFF
_EMPTY = (_SEPARATOR, _UNKNOWN, 0, 0, _NOTHING)  # Flat's values where no token stands


class Flat(NamedTuple):
    """Token, rank with the next token, byte position, and piece of every element; `_HALO` separators in front.

    `edge` is the byte before the token << 8 | its first byte; 0xFF is the beginning of a piece and a separator.
    """

    token: Array
    rank: Array
    place: Array
    piece: Array
    edge: Array


def merge_long(
    t: LookupTables,
    bytes_of: Gathered,
    first: Starts,
    pieces: Rows,
    found: Array,
    tile: int,
    wide: int,
) -> Array:
    """BPE of long pieces.

    Args:
      bytes_of: a buffer; first: its start tokens.
      pieces: where each begins in the buffer, and its bytes.
      found: int32 for each byte of the text, id + 1 at the first byte of every token known so far.
      tile: elements a step of the rounds; wide: bytes a step of collecting the pieces.

    Returns:
      `found` with the tokens of these pieces.
    """
    (start, length), count = pieces
    flat, total = _flatten(bytes_of, first.token, start, length, count, wide)

    def unfinished(carry):
        return carry[3]

    def two_rounds(carry):
        # the arrays change places in every round; two rounds a step spare XLA the copies that an exchange would cost
        flat, spare, total, _ = carry
        flat, lowest, _ = _look_up(t, flat, total, start.shape[0] + 1, tile)
        spare, total = _merge(t, flat, spare, total, lowest, tile)
        spare, lowest, any_left = _look_up(t, spare, total, start.shape[0] + 1, tile)
        flat, total = _merge(t, spare, flat, total, lowest, tile)
        return flat, spare, total, any_left

    spare = Flat(*(jnp.full_like(x, fill) for x, fill in zip(flat, _EMPTY, strict=True)))
    flat, _, total, _ = lax.while_loop(unfinished, two_rounds, (flat, spare, total, count > 0))

    def write(k, found):
        block = Flat(*(lax.dynamic_slice(x, (_HALO + k * tile,), (tile,)) for x in flat))
        use = (block.token >= 0) & (k * tile + jnp.arange(tile) < total)
        return put(found, bytes_of.source[block.place], block.token, use)

    return lax.fori_loop(0, -(-total // tile), write, found)


def _flatten(
    bytes_of: Gathered, tokens: Array, start: Array, length: Array, count: Array, tile: int
) -> tuple[Flat, Array]:
    """The pieces' start tokens one behind the other, and how many elements there are."""
    n = tokens.shape[0]
    valid = jnp.arange(start.shape[0]) < count
    wider = jnp.pad(bytes_of.data, (1, 0))
    heads = jnp.zeros(n, jnp.int8).at[jnp.where(valid, start, n)].set(1, mode="drop")
    tails = jnp.zeros(n, jnp.int8).at[jnp.where(valid, start + length, n)].set(1, mode="drop")
    block = tile + tile // 32  # separators come on top of the tokens: at most one in 129 bytes
    room = _HALO + n + start.shape[0] + block + _HALO
    flat = Flat(*(jnp.full(room, fill, jnp.int32) for fill in _EMPTY))

    def step(k, carry):
        flat, total, piece, depth = carry
        token, head, tail = (lax.dynamic_slice(x, (k * tile,), (tile,)) for x in (tokens, heads, tails))
        byte = lax.dynamic_slice(wider, (k * tile,), (tile + 1,)).astype(jnp.int32)

        def gather(flat, total, piece):
            inside = depth + jnp.cumsum(head.astype(jnp.int32) - tail) > 0
            alive, first = inside & (token >= 0), head > 0
            heads_before, heads_here = ranks(first)
            tokens_before, tokens_here = ranks(alive)
            # separators stand between the pieces, so a token moves on by the heads up to its own
            at = jnp.where(alive, tokens_before + heads_before + first, block)
            place = k * tile + jnp.arange(tile, dtype=jnp.int32)
            edge = jnp.where(first, _NOTHING, byte[:-1]) << 8 | byte[1:]
            values = Flat(token, jnp.full(tile, _UNKNOWN, jnp.int32), place, piece + heads_before + first, edge)
            flat = Flat(
                *(
                    append(x, _HALO + total, jnp.full(block, fill, jnp.int32).at[at].set(y, mode="drop"))
                    for x, y, fill in zip(flat, values, _EMPTY, strict=True)
                )
            )
            # the last separator stays open: the next head writes behind it
            return flat, total + tokens_here + heads_here, piece + heads_here

        needed = (depth > 0) | jnp.any(head > 0)
        flat, total, piece = lax.cond(needed, gather, lambda *x: x, flat, total, piece)
        return flat, total, piece, depth + (head.astype(jnp.int32) - tail).sum()

    zero = jnp.int32(0)
    flat, total, _, _ = lax.fori_loop(0, tiles_of(bytes_of.total, tile), step, (flat, zero, zero, zero))
    return flat, total + 1


def _look_up(t: LookupTables, flat: Flat, total: Array, pieces: int, tile: int) -> tuple[Flat, Array, Array]:
    """Ranks of the pairs that changed, the lowest rank of every piece, and whether anything is left to merge."""
    none = t.product.shape[0] - 1

    def step(k, carry):
        rank, lowest = carry
        first = _HALO + k * tile
        token = lax.dynamic_slice(flat.token, (first,), (tile + 1,))
        known = lax.dynamic_slice(rank, (first,), (tile,))
        used = k * tile + jnp.arange(tile) < total
        ask = used & (known == _UNKNOWN) & (token[:-1] >= 0) & (token[1:] >= 0)
        known = jnp.where(ask, pair_rank(t, token[:-1], token[1:], ask), jnp.where(known == _UNKNOWN, none, known))
        known = jnp.where(used, known, none)
        piece = lax.dynamic_slice(flat.piece, (first,), (tile,))
        return lax.dynamic_update_slice(rank, known, (first,)), lowest.at[piece].min(known, mode="drop")

    # separators and the stretch behind the last token never merge
    lowest = jnp.full(pieces, none, jnp.int32)
    rank, lowest = lax.fori_loop(0, -(-total // tile), step, (flat.rank, lowest))
    rank = lax.dynamic_update_slice(rank, jnp.full(_HALO, none, jnp.int32), (0,))
    rank = lax.dynamic_update_slice(rank, jnp.full(_HALO, none, jnp.int32), (_HALO + total,))
    return flat._replace(rank=rank), lowest, jnp.any(lowest < none)


def _merge(t: LookupTables, flat: Flat, spare: Flat, total: Array, lowest: Array, tile: int) -> tuple[Flat, Array]:
    """All certain merges of a round, written to the spare arrays, and how many elements are left."""
    none = t.product.shape[0] - 1
    strict = ~t.orderly[lowest] & (lowest < none)  # pieces whose lowest rank must go one at a time

    def first_of_lowest(_):
        """Position of the first occurrence of the lowest rank, for the pieces that go one at a time."""

        def step(k, first):
            at = k * tile + jnp.arange(tile, dtype=jnp.int32)
            rank = lax.dynamic_slice(flat.rank, (_HALO + k * tile,), (tile,))
            piece = lax.dynamic_slice(flat.piece, (_HALO + k * tile,), (tile,))
            hit = (rank == lowest[piece]) & (rank < none) & (at < total)
            return first.at[jnp.where(hit, piece, first.shape[0])].min(at, mode="drop")

        return lax.fori_loop(0, -(-total // tile), step, jnp.full(lowest.shape[0], 0x7FFFFFFF, jnp.int32))

    def no_piece(_):
        return jnp.full(lowest.shape[0], 0x7FFFFFFF, jnp.int32)

    first = lax.cond(jnp.any(strict), first_of_lowest, no_piece, 0)

    def step(k, carry):
        out, kept, chain, picked_before = carry
        window = Flat(*(lax.dynamic_slice(x, (k * tile,), (tile + 2 * _HALO,)) for x in flat))
        at = k * tile - _HALO + jnp.arange(tile + 2 * _HALO, dtype=jnp.int32)
        pick, chain = fence(t.known, _picks(t, window, at, lowest, strict, first, chain, tile))
        here = slice(_HALO, _HALO + tile)
        mine, following = pick[here], pick[_HALO + 1 : _HALO + tile + 1]
        before = jnp.concatenate([picked_before[None], mine[:-1]])
        used = at[here] < total
        stays = used & ~before
        rank = window.rank[here]
        token = jnp.where(mine, t.product[rank], window.token[here])
        rank = jnp.where(mine | following, _UNKNOWN, rank)
        index, count = positions(stays)
        block = Flat(token, rank, window.place[here], window.piece[here], window.edge[here])
        out = Flat(*(append(x, _HALO + kept, y[index]) for x, y in zip(out, block, strict=True)))
        return out, kept + count, chain, mine[-1]

    carry = (spare, jnp.int32(0), jnp.int32(0), jnp.bool_(False))
    out, kept, _, _ = lax.fori_loop(0, -(-total // tile), step, carry)
    # what stands behind the last element is left over from the tile and must not look like a token
    out = out._replace(
        token=lax.dynamic_update_slice(out.token, jnp.full(_HALO, _SEPARATOR, jnp.int32), (_HALO + kept,))
    )
    return out, kept


def _picks(t, w: Flat, at: Array, lowest, strict, first, chain: Array, tile: int) -> tuple[Array, Array]:
    """bool[window]: which merges of the window are certain; valid from _HALO to _HALO + tile + 1.

    `chain` is the position where the run of equal ranks that enters the tile began.
    """
    none = t.product.shape[0] - 1
    rank = w.rank
    before = jnp.concatenate([jnp.full(1, none, jnp.int32), rank[:-1]])
    behind = jnp.concatenate([rank[1:], jnp.full(1, none, jnp.int32)])
    merges = rank < none
    low, one_at_a_time, orderly = fence(t.known, (lowest[w.piece], strict[w.piece], t.orderly[rank]))
    # equal neighbouring ranks are a run of one token; of its pairs every other one goes, from the left
    new_run = rank != before
    begin = jnp.where(new_run & (at >= 0), at, 0)
    inherited = jnp.concatenate([jnp.maximum(begin[_HALO : _HALO + 1], chain), begin[_HALO + 1 :]])
    run = jnp.concatenate([begin[:_HALO], lax.cummax(inherited)])
    is_low = merges & (rank == low)
    even = ((at - run) & 1) == 0
    certain = is_low & jnp.where(one_at_a_time, at == first[w.piece], even)
    local = merges & orderly & (rank < before) & (rank < behind) & ~one_at_a_time
    safe = local & _unreachable_from_left(t, w, rank) & _unreachable_from_right(t, w, rank)
    return certain | safe, run[_HALO + tile - 1]


def _shift(x: Array, by: int, fill) -> Array:
    """x[i + by] at i."""
    if by == 0:
        return x
    pad = jnp.full(abs(by), fill, x.dtype)
    return jnp.concatenate([x[by:], pad]) if by > 0 else jnp.concatenate([pad, x[:by]])


def _unreachable_from_left(t: LookupTables, w: Flat, rank: Array) -> Array:
    """No merge of rank below r can take the left token of the pair: see the module's second rule."""
    swallow = fence(t.known, reach(t, t.right_reach, jnp.maximum(w.token, 0), w.edge >> 8))
    swallow = jnp.where(w.token >= 0, swallow, t.product.shape[0])
    safe, open_ = jnp.zeros(rank.shape, bool), jnp.ones(rank.shape, bool)
    for k in range(_REACH):
        safe |= open_ & (_shift(swallow, -k, 0) > rank)
        # the neighbour must not be able to merge leftwards at this rank or below before r is due
        open_ &= _shift(rank, -k - 2, 0) > rank
    return safe


def _unreachable_from_right(t: LookupTables, w: Flat, rank: Array) -> Array:
    """Mirror image; an equal rank to the right may stay, since the leftmost of equals goes first."""
    behind = _shift(w.edge & 0xFF, 1, _NOTHING)
    swallow = fence(t.known, reach(t, t.left_reach, jnp.maximum(w.token, 0), behind))
    swallow = jnp.where(w.token >= 0, swallow, t.product.shape[0])
    safe, open_ = jnp.zeros(rank.shape, bool), jnp.ones(rank.shape, bool)
    for k in range(_REACH):
        safe |= open_ & (_shift(swallow, k + 1, 0) >= rank)
        open_ &= _shift(rank, k + 2, 0) >= rank
    return safe
