"""Keeping XLA's CPU fusion from computing the same thing again for every reader."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

T = TypeVar("T")


def fence(true: Array, values: T) -> T:
    """The values, computed once and stored.

    XLA fuses a producer into every one of its consumers; on a CPU a look-up per piece is then repeated for each of the
    piece's bytes, and `optimization_barrier` does not help, because it is dropped before fusion.  The operands of a
    conditional must be in memory, so a conditional whose outcome the compiler cannot know keeps them apart; it costs a
    microsecond.  On a GPU, where it would cost a kernel launch, fusion is left alone.

    Args:
      true: bool scalar, true at run time, and nothing that a compiler could work out.
      values: a pytree of arrays.
    """

    def stored(true: Array, values: T) -> T:
        return lax.cond(true, lambda v: v, lambda v: jax.tree.map(jnp.zeros_like, v), values)

    return lax.platform_dependent(true, values, cpu=stored, default=lambda _, v: lax.optimization_barrier(v))
