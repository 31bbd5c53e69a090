"""The bytes of some pieces side by side in a buffer of their own (traced JAX functions).

Few bytes of a text are left to merge: 3 to 10 % once whole tokens are found and equal pieces count once.  What follows
(start tokens, their numbers, the merges) runs over these alone.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.compact import ranks, tiles_of
from toktier.rows import Rows


class Gathered(NamedTuple):
    """data: uint8[N + tile], 0xFF behind the first `total` (int32) bytes; source and head are of the same shape.

    head: bool, a piece starts, or the last one ended: a piece may end inside a character (Falcon's do).
    source: int32, where each byte stands in the text.
    """

    data: Array
    head: Array
    source: Array
    total: Array


def gather(data: Array, pieces: Rows, total: Array, tile: int) -> Gathered:
    """The bytes of pieces, one behind the other.

    Args:
      data: uint8[N]; pieces: start, length, and `offset`, the lengths in front; total: all lengths.
      tile: bytes a step (static, a multiple of 32).
    """
    start, _, offset = pieces.columns
    room = data.shape[0] + tile
    valid = jnp.arange(start.shape[0]) < pieces.number
    head = jnp.zeros(room, bool).at[total].set(True)
    head = head.at[jnp.where(valid, offset, room)].set(True, mode="drop", unique_indices=True)

    def step(k, carry):
        bytes_of, source, before = carry
        flags = lax.dynamic_slice(head, (k * tile,), (tile,))
        rank, count = ranks(flags)
        piece = before + rank + flags - 1  # the last that starts at or before each byte
        at = k * tile + jnp.arange(tile, dtype=jnp.int32)
        inside = at < total
        from_ = jnp.where(inside, at + (start - offset)[piece], 0)
        byte = jnp.where(inside, data[from_], jnp.uint8(0xFF))
        bytes_of = lax.dynamic_update_slice(bytes_of, byte, (k * tile,))
        return bytes_of, lax.dynamic_update_slice(source, from_, (k * tile,)), before + count

    carry = (jnp.full(room, 0xFF, jnp.uint8), jnp.zeros(room, jnp.int32), jnp.int32(0))
    bytes_of, source, _ = lax.fori_loop(0, tiles_of(total, tile), step, carry)
    return Gathered(bytes_of, head, source, total)
