"""What is said of rows before they are tokenized: are they UTF-8, would NFC change them (traced JAX functions).

Every function gets the flat bytes of all rows with at least one boundary (0xFF) behind each row, and flags places.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from toktier.bands import band, padded
from toktier.normalize import nfc
from toktier.pretok.scan import code_points

Table = Any  # a NumPy array until it is put on the device, a jax.Array from then on

BOUNDARY = 0xFF


class Kinds(NamedTuple):
    """The kinds of all code points (`normalize/nfc.py`): kind of c = `kind[block[c >> 8] * 256 + (c & 255)]`.

    wanted: bool scalar, the tokenizer normalizes to NFC; block: int32[0x1100]; kind: uint8[blocks * 256].
    """

    wanted: Table
    block: Table
    kind: Table


@functools.cache
def kinds(wanted: bool) -> Kinds:
    """The table (NumPy), all zeros where NFC is not wanted."""
    table = nfc.tables().kind if wanted else np.zeros(0x110000, np.uint8)
    blocks, index = np.unique(table.reshape(-1, 256), axis=0, return_inverse=True)
    flat = padded(blocks, 0, band(len(blocks), 128), 256).reshape(-1)
    return Kinds(np.asarray(wanted), index.reshape(-1).astype(np.int32), flat)


def not_utf8(data: Array) -> Array:
    """bool[N]: some ill-formed byte sequence shows here (Unicode 3.9, table 3-7); 0xFF is a boundary and well."""
    wide = (data >= 0x80) & (data != BOUNDARY)
    return lax.cond(jnp.any(wide), _ill_formed, lambda d: jnp.zeros(d.shape, bool), data)


def _ill_formed(data: Array) -> Array:
    b, b1, b2, b3 = data, _down(data, 1), _down(data, 2), _down(data, 3)
    continues = (b & 0xC0) == 0x80
    # a boundary looks like a lead of four bytes, and C0, C1, F5 and above are none
    due = _lead(b1, 0xC2) | _lead(b2, 0xE0) | _lead(b3, 0xF0)
    never = (b == 0xC0) | (b == 0xC1) | ((b >= 0xF5) & (b != BOUNDARY))
    narrow = ((b1 == 0xE0) & (b < 0xA0)) | ((b1 == 0xED) & (b > 0x9F))  # overlong; a surrogate
    narrow |= ((b1 == 0xF0) & (b < 0x90)) | ((b1 == 0xF4) & (b > 0x8F))  # overlong; beyond U+10FFFF
    return (continues != due) | never | narrow


def _lead(b: Array, least: int) -> Array:
    return (b >= least) & (b < 0xF5)


def not_normalized(t: Kinds, data: Array) -> Array:
    """bool[N]: NFC may change something here; nowhere where it is not wanted.  The bytes are UTF-8 and boundaries."""

    def look(data: Array) -> Array:
        lead = (data & 0xC0) != 0x80
        point = jnp.where(lead & (data != BOUNDARY), jnp.minimum(code_points(data), 0x10FFFF), 0)
        kind = t.kind[t.block[point >> 8] * 256 + (point & 255)]
        # of the character that a byte belongs to
        whole = jnp.where(lead, kind, 0)
        for k in (1, 2, 3):
            inner = ~lead
            for j in range(1, k):
                inner &= ~_down(lead, j)
            whole = jnp.where(inner & _down(lead, k), _down(kind, k), whole)
        before = _down(whole, 1)
        return lead & ((kind >= nfc.ATTENTION) | ((kind != 0) & (kind < before)))

    wide = t.wanted & jnp.any((data >= 0x80) & (data != BOUNDARY))
    return lax.cond(wide, look, lambda d: jnp.zeros(d.shape, bool), data)


def _down(x: Array, by: int) -> Array:
    """x[i - by] at i: what stands `by` bytes earlier (0 before the beginning)."""
    return jnp.concatenate([jnp.zeros(by, x.dtype), x[:-by]])
