"""One launch over the bytes of many texts: what stands in the way of each byte, then the tokens.

The texts lie one behind the other with a boundary (0xFF) behind each, which is start of text for what follows and end
of text for what precedes, so none sees another.  Both functions know nothing of rows and have the shape of the launch
alone, so all batches of one size of launch share their compilation.
"""

from __future__ import annotations

import enum
import functools
import threading

import jax
import jax.numpy as jnp
from jax import Array

from toktier import program
from toktier.added import FORBID, LOOK_AROUND
from toktier.device import tiles_for
from toktier.jax import literals
from toktier.jax.checks import BOUNDARY, not_normalized, not_utf8
from toktier.jax.tables import Tables

MOST = 1 << 26  # bytes of a launch: the program packs a place and a length into 31 bits


class Reason(enum.IntEnum):
    """Why a row has no tokens; the first of these that applies."""

    OK = 0
    LENGTH = 1  # its length is negative, or more than the bytes of a row
    SPAN = 2  # its spans overlap, are not in order or do not lie within it
    UTF8 = 3  # its bytes are not UTF-8
    FORBIDDEN = 4  # it holds a special token, and those are forbidden
    LITERAL = 5  # it holds an added token that the host must match: one that looks at the text around it
    NORMALIZER = 6  # NFC may change it
    BYTE = 7  # it holds a byte that the vocabulary lacks
    OVERFLOW = 8  # it has more than max_tokens tokens; `needed` says how many


def capacity(size: int, platform: str) -> int:
    """Bytes of a launch for so many: what the tiles of the program divide, and the lanes of its scan on a CPU."""
    if platform == "cpu":
        return 1 << 13 if size <= 1 << 13 else -(-size >> 14) << 14
    return -(-size >> 16) << 16


@functools.partial(jax.jit, static_argnames="planned")
def prepare(tables: Tables, found: literals.Found, planned: bool) -> tuple[literals.Found, Array]:
    """The bytes as the program takes them, and everything that keeps it from being exact.

    Args:
      found: bytes with a boundary behind each text; of literals, what the host has found.
      planned: the host has found all literals and has normalized the text.

    Returns:
      found with the literals cut out and prefix spaces put in, and uint16[N]: bit `reason` is set where there is such a
      reason.
    """
    ill = not_utf8(found.data)
    changed = jnp.zeros(ill.shape, bool)
    if not planned:
        found = literals.cut(tables.literals, literals.RAW, found)
        changed = not_normalized(tables.kinds, found.data)
        found = literals.cut(tables.literals, literals.NORMALIZED, found)
    unclear = found.refused == LOOK_AROUND
    if tables.prefix_space:
        data, crowded = _with_spaces(found)
        found, unclear = found._replace(data=data), unclear | crowded
    lacking = tables.missing[found.data.astype(jnp.int32)] & (found.data != BOUNDARY)
    wrong = {
        Reason.UTF8: ill,
        Reason.FORBIDDEN: found.refused == FORBID,
        Reason.LITERAL: unclear,
        Reason.NORMALIZER: changed,
        Reason.BYTE: lacking,
    }
    bits = jnp.zeros(ill.shape, jnp.uint16)
    for reason, flags in wrong.items():
        bits |= jnp.where(flags, jnp.uint16(1 << reason), jnp.uint16(0))
    return found, bits


@functools.partial(jax.jit, static_argnames="platform")
def tokenize(tables: program.DeviceTables, found: literals.Found, good: Array, platform: str) -> Array:
    """int32[N]: id + 1 at the first byte of every token, 0 elsewhere.

    Args:
      good: bool[N], the bytes that may be tokenized; the others are boundaries.
    """
    _traces.add()
    n = found.data.shape[0]
    data = jnp.where(good, found.data, jnp.uint8(BOUNDARY))
    tokens = program.tokens_at(tables, data, tiles_for(n, "cpu" if platform == "cpu" else "gpu"))
    return jnp.where(good & (found.token > 0), found.token, tokens)


def _with_spaces(found: literals.Found) -> tuple[Array, Array]:
    """The bytes with a space in front of each segment that does not begin with one, and where there is no room for it.

    The space takes the place in front of the segment: the lead of a row, or the last byte of a literal, whose own token
    stands at its first byte.  A literal of one byte has no room: bool[N], flagged.
    """
    data = found.data
    behind = jnp.concatenate([data[1:], jnp.full(1, BOUNDARY, jnp.uint8)])
    wanted = (data == BOUNDARY) & (behind != BOUNDARY) & (behind != 0x20)
    crowded = wanted & (found.token > 0)
    return jnp.where(wanted & ~crowded, jnp.uint8(0x20), data), crowded


class _Traces:
    """Counts how often the program is traced."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """One more."""
        with self._lock:
            self.count += 1


_traces = _Traces()


def trace_count() -> int:
    """How many programs were traced in this process: one for each size of launch, and one for each jitted caller."""
    return _traces.count
