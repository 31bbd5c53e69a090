"""The pre-tokenizer on the device: bytes -> where pieces start, as two automata run in parallel (traced JAX functions).

The state before a byte is the product of the transition maps of all bytes before it; products form a small monoid
(15 to 203 elements), so "all prefixes at once" is a scan over element numbers with one table look-up a step
(Hillis and Steele; Ladner and Fischer).  Two ways of scanning with the same result:

* blocks (CPU): the text is cut into lanes, and the lanes run from their entry states.  These are what the last bytes of
  the lane before lead to, where those lead to one state from every other; else each lane is multiplied up, and the
  lanes' products are scanned.  One look-up a byte and direction, or two.
* tree (GPU): `lax.associative_scan`, about 2 log2 N wide steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from toktier.bands import band, padded
from toktier.compact import positions, tiles_of
from toktier.pretok.tables import DROPPED, START, PretokTables

Table = Any  # a NumPy array until it is put on the device, a jax.Array from then on

BOUNDARY_BYTE = 0xFF
_FEW = 1024  # characters of several bytes that are looked up at a time, where there are few
_NEAR = 32  # bytes that mostly tell a state
_LANE = 256  # bytes a lane; 64 and 128 cost more in transposing, an unrolled loop costs twice (repeated look-ups)


class Direction(NamedTuple):
    """One automaton.

    element: of each symbol [S+2]; product: of two elements [M, M]; times: element then symbol [M, S+2]; state: of each
    element from 0 [M]; constant: does an element lead there from every state [M]; next: [Q, S+2].
    """

    element: Table
    product: Table
    times: Table
    state: Table
    constant: Table
    next: Table


class ScanTables(NamedTuple):
    """Device form of PretokTables; here S + 2 counts the padding, and the last two symbols are S and S + 1.

    ascii_symbol: uint8[256], symbol of each byte, continuation for the bytes of multi-byte characters.
    block: int32[0x1100], symbol: uint8[n_blocks * 256]; out: uint8[QL, S+2, QR] with DROPPED at the boundary.
    inner: uint8[S+2], bit j set where byte j of the character starts a piece as well.
    """

    ascii_symbol: Table
    block: Table
    symbol: Table
    left: Direction
    right: Direction
    out: Table
    inner: Table


def scan_tables(tables: PretokTables) -> ScanTables:
    """Arrays for the device (NumPy; the caller puts them there), padded to bands."""
    s = tables.n_symbols
    # with padding the continuation byte and the boundary are the last two symbols
    symbols = band(s + 2, 64, 256)
    continuation, boundary = symbols - 2, symbols - 1
    ascii_symbol = np.full(256, continuation, np.uint8)
    first = int(tables.block[0]) * 256
    ascii_symbol[:128] = tables.symbol[first : first + 128]
    ascii_symbol[BOUNDARY_BYTE] = boundary
    left_states, right_states = band(tables.out.shape[0], 32, 256), band(tables.out.shape[2], 16, 256)
    out = padded(tables.out.astype(np.uint8), 0, left_states, symbols, right_states)
    out[:, boundary] = DROPPED

    def direction(elements, product, symbol, step, states) -> Direction:
        count = band(len(elements), 256, 1024)
        element = np.zeros(symbols, product.dtype)
        element[:s], element[continuation], element[boundary] = symbol[:s], symbol[s], symbol[s + 1]
        # a continuation byte leaves every state as it is; a boundary leads to state 0
        follow = np.repeat(np.arange(states, dtype=np.uint8)[:, None], symbols, 1)
        follow[: len(step), :s] = step
        follow[:, boundary] = 0
        state = padded(elements[:, 0].astype(np.uint8), 0, count)
        constant = padded((elements == elements[:, :1]).all(1), False, count)
        product = padded(product, 0, count, count)
        return Direction(element, product, product[:, element], state, constant, follow)

    blocks = band(len(tables.symbol) // 256, 512)
    return ScanTables(
        ascii_symbol,
        tables.block.astype(np.int32),
        padded(tables.symbol.astype(np.uint8), 0, blocks * 256),
        direction(tables.left_elements, tables.left_product, tables.left_symbol, tables.left_next, left_states),
        direction(tables.right_elements, tables.right_product, tables.right_symbol, tables.right_next, right_states),
        out,
        padded(tables.inner.astype(np.uint8), 0, symbols),
    )


def code_points(data: Array) -> Array:
    """int32[N]: the code point that starts at each byte; meaningless at continuation bytes and at boundaries."""
    b = data.astype(jnp.int32)
    padded = jnp.pad(b, (0, 3))
    return code_point(b, padded[1:-2], padded[2:-1], padded[3:])


def code_point(b: Array, b1: Array, b2: Array, b3: Array) -> Array:
    """int32: the code point of four bytes, int32 each, of which those that it does not need are not looked at."""
    b1, b2, b3 = b1 & 63, b2 & 63, b3 & 63
    two = (b & 31) << 6 | b1
    three = (b & 15) << 12 | b1 << 6 | b2
    four = (b & 7) << 18 | b1 << 12 | b2 << 6 | b3
    return jnp.where(b < 0x80, b, jnp.where(b < 0xE0, two, jnp.where(b < 0xF0, three, four)))


def symbols(t: ScanTables, data: Array) -> Array:
    """uint8[N]: symbol of the character that starts at each byte, S at continuation bytes, S + 1 at boundaries."""
    leads = (data >= 0xC0) & (data != BOUNDARY_BYTE)
    plain = t.ascii_symbol[data.astype(jnp.int32)]

    def of_points(point):
        point = jnp.minimum(point, 0x10FFFF)
        return t.symbol[t.block[point >> 8] * 256 + (point & 255)]

    def everywhere(leads, plain):
        return jnp.where(leads, of_points(code_points(data)), plain)

    def where_needed(leads, plain):
        """In English and code one byte in a hundred begins such a character."""
        n, tile = data.shape[0], math.gcd(data.shape[0], _FEW)
        place, count = positions(leads)
        padded = jnp.pad(data, (0, 3))

        def step(k, plain):
            at = lax.dynamic_slice(place, (k * tile,), (tile,))
            byte, *rest = (padded[at + j].astype(jnp.int32) for j in range(4))
            valid = k * tile + jnp.arange(tile) < count
            return plain.at[jnp.where(valid, at, n)].set(of_points(code_point(byte, *rest)), mode="drop")

        return lax.fori_loop(0, tiles_of(count, tile), step, plain)

    def by_share(leads, plain):
        many = jnp.sum(leads, dtype=jnp.int32) > data.shape[0] >> 4
        return lax.cond(many, everywhere, where_needed, leads, plain)

    if data.shape[0] % 32:
        return everywhere(leads, plain)
    return lax.platform_dependent(leads, plain, cpu=by_share, default=everywhere)


def marks(t: ScanTables, data: Array) -> Array:
    """uint8[N]: START where a piece starts, DROPPED at characters in no piece and at boundaries, else 0 (INSIDE)."""
    symbol = symbols(t, data)
    if data.shape[0] % (_LANE * 32):
        code = _by_tree(t, symbol)
    else:
        code = lax.platform_dependent(symbol, cpu=lambda s: _by_blocks(t, s), default=lambda s: _by_tree(t, s))
    return lax.cond(jnp.any(t.inner != 0), lambda c: _with_inner(t, symbol, c), lambda c: c, code)


def _with_inner(t: ScanTables, symbol: Array, code: Array) -> Array:
    """Adds the pieces that begin inside characters."""
    mask = jnp.pad(t.inner[symbol.astype(jnp.int32)], (3, 0))
    n = code.shape[0]
    starts = (mask[2 : 2 + n] >> 1 | mask[1 : 1 + n] >> 2 | mask[:n] >> 3) & 1
    return jnp.where(starts == 1, jnp.uint8(START), code)


def _product(d: Direction, first: Array, then: Array) -> Array:
    return d.product.reshape(-1)[first.astype(jnp.int32) * d.product.shape[0] + then]


def _out(t: ScanTables, left: Array, symbol: Array, right: Array) -> Array:
    _, s, r = t.out.shape
    return t.out.reshape(-1)[(left.astype(jnp.int32) * s + symbol) * r + right]


def _by_tree(t: ScanTables, symbol: Array) -> Array:
    index = symbol.astype(jnp.int32)
    left = lax.associative_scan(lambda a, b: _product(t.left, a, b), t.left.element[index])
    # a reversed scan hands over (later text, this text): the right automaton reads the later text first
    right = lax.associative_scan(lambda a, b: _product(t.right, a, b), t.right.element[index], reverse=True)
    zero = jnp.zeros(1, jnp.uint8)
    before = jnp.concatenate([zero, t.left.state[left[:-1].astype(jnp.int32)]])
    behind = jnp.concatenate([t.right.state[right[1:].astype(jnp.int32)], zero])
    return _out(t, before, symbol, behind)


def _by_blocks(t: ScanTables, symbol: Array) -> Array:
    lanes = symbol.reshape(-1, _LANE).T  # [step, lane]

    def entry_states(d: Direction, reverse: bool) -> Array:
        """uint8[lanes]: state at the near end of every lane."""
        start = jnp.zeros(lanes.shape[1], d.product.dtype)
        width = d.times.shape[1]

        def multiply(element, s):
            return d.times.reshape(-1)[element.astype(jnp.int32) * width + s], None

        def all_before(_):
            total, _ = lax.scan(multiply, start, lanes, reverse=reverse)
            total = lax.associative_scan(lambda a, b: _product(d, a, b), total, reverse=reverse)
            return d.state[total.astype(jnp.int32)]

        # mostly a few bytes tell the state behind them, whatever it was in front of them
        near, _ = lax.scan(multiply, start, lanes[:_NEAR] if reverse else lanes[-_NEAR:], reverse=reverse)
        index = near.astype(jnp.int32)
        state = lax.cond(jnp.all(d.constant[index]), lambda index: d.state[index], all_before, index)
        zero = jnp.zeros(1, jnp.uint8)
        return jnp.concatenate([state[1:], zero]) if reverse else jnp.concatenate([zero, state[:-1]])

    def follow(d: Direction, state: Array, s: Array) -> Array:
        return d.next.reshape(-1)[state.astype(jnp.int32) * d.next.shape[1] + s]

    def backward(state, s):
        return follow(t.right, state, s), state

    def forward(state, step):
        s, behind = step
        return follow(t.left, state, s), _out(t, state, s, behind)

    _, behind = lax.scan(backward, entry_states(t.right, True), lanes, reverse=True)
    _, found = lax.scan(forward, entry_states(t.left, False), (lanes, behind))
    return found.T.reshape(-1)
