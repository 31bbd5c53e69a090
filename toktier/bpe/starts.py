"""From bytes to the tokens BPE starts from, for pieces laid out as [slot, piece] (traced JAX functions).

A slot is a byte of the piece.  A byte that is no token of its own, because a whole character starts at an earlier byte
(char_start.py), is a dead slot from the beginning.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from toktier.bpe.char_start import AFTER_ASCII, AFTER_MULTI, AT_HEAD, TOKEN_MASK
from toktier.bpe.lookup import LookupTables, pair_rank


def _down(x: Array, by: int, fill) -> Array:
    """x[l - by] at l: what stands `by` slots earlier."""
    return jnp.concatenate([jnp.full((by, *x.shape[1:]), fill, x.dtype), x[:-by]])


def _up(x: Array, by: int, fill) -> Array:
    """x[l + by] at l: what stands `by` slots later."""
    return jnp.concatenate([x[by:], jnp.full((by, *x.shape[1:]), fill, x.dtype)])


def start_tokens(t: LookupTables, byte: Array, inside: Array, head: Array) -> tuple[Array, Array]:
    """Start token and liveness of every slot.

    Args:
      byte: int32[L, ...], the bytes along the first axis; inside: bool[L, ...], the slot belongs to a piece;
      head: bool, broadcastable to `byte`, the slot is the first one of a piece.

    Returns:
      (int32 token, bool alive), both shaped like `byte`.
    """

    def of_bytes(byte):
        return t.byte_token[byte], inside

    def of_characters(byte):
        b1, b2, b3 = (_up(byte, k, 0) & 63 for k in (1, 2, 3))
        two, three = (byte & 31) << 6 | b1, (byte & 15) << 12 | b1 << 6 | b2
        point = jnp.where(byte < 0xE0, two, jnp.where(byte < 0xF0, three, (byte & 7) << 18 | b1 << 12 | b2 << 6 | b3))
        lead = inside & (byte >= 0xC2) & (byte < 0xF5)
        point = jnp.where(lead, jnp.minimum(point, 0x10FFFF), 0)
        value = t.char_start[t.char_block[point >> 8] * 256 + (point & 255)]
        before = _down(byte, 1, 0)
        flag = jnp.where(head, AT_HEAD, jnp.where(before < 0x80, AFTER_ASCII, AFTER_MULTI))
        safe = lead & ((value & flag) != 0)
        width = jnp.where(byte < 0xE0, 2, jnp.where(byte < 0xF0, 3, 4))
        dead = _down(safe, 1, False)
        dead |= _down(safe & (width >= 3), 2, False) | _down(safe & (width >= 4), 3, False)
        return jnp.where(safe, value & TOKEN_MASK, t.byte_token[byte]), inside & ~dead

    return lax.cond(jnp.any((byte >= 0x80) & inside), of_characters, of_bytes, byte)


def start_ranks(t: LookupTables, byte: Array, token: Array, alive: Array) -> Array:
    """int32[L, ...]: rank of each live slot's merge with the next live slot, R where there is none."""
    none = t.product.shape[0] - 1
    plain = jnp.all(token == t.byte_token[byte], where=alive)

    def of_bytes(_):
        found = t.byte_pair_rank[byte << 8 | _up(byte, 1, 0)]
        return jnp.where(alive & _up(alive, 1, False), found, none)

    def of_tokens(_):
        after, exists = _up(token, 4, 0), _up(alive, 4, False)
        for by in (3, 2, 1):  # a character is at most four slots wide
            nearer = _up(alive, by, False)
            after, exists = jnp.where(nearer, _up(token, by, 0), after), exists | nearer
        return pair_rank(t, token, after, alive & exists)

    return lax.cond(plain, of_bytes, of_tokens, 0)
