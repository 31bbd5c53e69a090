"""Lists of fixed room on the device, written and read some rows at a time (traced JAX functions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.compact import ranks


class Rows(NamedTuple):
    """columns: int32[room] each, of which the first `number` (int32) entries are valid."""

    columns: tuple[Array, ...]
    number: Array

    def block(self, k: Array, tile: int) -> tuple[tuple[Array, ...], Array]:
        """The k-th `tile` rows, and which of them are valid."""
        values = tuple(lax.dynamic_slice(c, (k * tile,), (tile,)) for c in self.columns)
        return values, k * tile + jnp.arange(tile) < self.number

    def append(self, values: Sequence[Array], flags: Array) -> Rows:
        """With the flagged entries of `values` behind what there is; as many of them as flags, a multiple of 32."""
        before, count = ranks(flags)
        at = jnp.where(flags, self.number + before, self.columns[0].shape[0])
        columns = [c.at[at].set(v, mode="drop", unique_indices=True) for c, v in zip(self.columns, values, strict=True)]
        return Rows(tuple(columns), self.number + count)


def no_rows(room: int, columns: int) -> Rows:
    """An empty list.  `room`: of the most rows there can be, and a tile more, so that reading one never moves it."""
    return Rows(tuple(jnp.zeros(room, jnp.int32) for _ in range(columns)), jnp.int32(0))


def put(found: Array, at: Array, token: Array, flags: Array) -> Array:
    """`found` with token + 1 at the flagged places."""
    return found.at[jnp.where(flags, at, found.shape[0])].set(token + 1, mode="drop", unique_indices=True)
