"""The pre-tokenizer on the host: bytes -> piece bounds with NumPy, exact for any input.

The state before a character hangs on the few characters before it nearly always, so a table over three symbols (two
where there are many symbols) gives it with one look-up.  What that leaves open (digit groups, runs of one class) is
resolved on those positions alone by doubling: products of 1, 2, 4, 8, ... transition maps, until all are constant.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from toktier.pretok.tables import DROPPED, START, PretokTables

BOUNDARY_BYTE = 0xFF
_OPEN = 255  # no state: the window does not fix it
_CHUNK = 1 << 15  # characters whose keys stay in the cache
_MULTIBYTE = 255  # no symbol: the lead byte of a character of several bytes


def piece_bounds(tables: PretokTables, buffer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Byte offsets (int64[k], int64[k]) where the pieces of `buffer: uint8[n]` start and end (exclusive).

    `buffer` is valid UTF-8 with 0xFF as the boundary between texts.  Safe from any thread.

    >>> from toktier.pretok.store import load_tables
    >>> tables = load_tables('{"type": "ByteLevel", "add_prefix_space": false}', "tokenizers")
    >>> [bounds.tolist() for bounds in piece_bounds(tables, np.frombuffer(b"It's 2", np.uint8))]
    [[0, 2, 4], [2, 4, 6]]
    """
    scan = _scan_of(tables)
    symbol = scan.of_byte.take(buffer)
    at = None
    if symbol.size and scan.seen_above(symbol):
        symbol, at = scan.decode(buffer, symbol)
    mark = scan.marks(symbol)
    edges = np.flatnonzero(mark)
    plain = edges if at is None else at[edges]
    ends = np.append(plain, len(buffer))[1:]
    if scan.drops or (mark.take(edges) != START).any():
        kept = mark[edges] == START
        plain, ends = plain[kept], ends[kept]
    if scan.inner is not None and at is not None:
        return scan.with_inner(plain, ends, symbol, mark, at)
    return plain, ends


class _Side(NamedTuple):
    """One direction: state or _OPEN of each window; element of each symbol, `product[a * stride + b]`."""

    window: np.ndarray
    element: np.ndarray
    product: np.ndarray
    stride: int
    state: np.ndarray
    is_constant: np.ndarray
    constant_of: np.ndarray
    step: np.ndarray


class HostScan:
    """PretokTables prepared for NumPy; symbols 0..S-1, S the boundary, continuation bytes left out."""

    def __init__(self, tables: PretokTables) -> None:
        s = tables.n_symbols
        self.n = s + 1
        self.width = 3 if self.n**3 <= 1 << 16 else 2
        first = int(tables.block[0]) * 256
        self.of_byte = np.full(256, _MULTIBYTE, np.uint8)
        self.of_byte[:128] = tables.symbol[first : first + 128]
        self.of_byte[BOUNDARY_BYTE] = s
        self.block = tables.block.astype(np.intp) * 256
        self.symbol = tables.symbol
        self.left = self._side(tables.left_elements, tables.left_product, tables.left_symbol, tables.left_next, False)
        self.right = self._side(
            tables.right_elements, tables.right_product, tables.right_symbol, tables.right_next, True
        )
        out = np.full((len(tables.left_next), self.n, len(tables.right_next)), DROPPED, np.uint8)
        out[:, :s] = tables.out
        self.n_right = len(tables.right_next)
        self.out = out.ravel()
        self.out_key = np.uint16 if out.size <= 1 << 16 else np.int64
        self.drops = tables.drops
        self.inner = np.append(tables.inner, 0) if tables.inner.any() else None

    def _side(
        self, elements: np.ndarray, product: np.ndarray, symbol: np.ndarray, step: np.ndarray, right: bool
    ) -> _Side:
        s = self.n - 1
        element = np.append(symbol[:s], symbol[s + 1]).astype(np.int64)
        keys = np.arange(self.n**self.width)
        digits = [keys // self.n ** (self.width - 1 - k) % self.n for k in range(self.width)]
        if right:
            digits.reverse()
        whole = element[digits[0]]
        for digit in digits[1:]:
            whole = product[whole, element[digit]].astype(np.int64)
        is_constant = (elements == elements[:, :1]).all(axis=1)
        state = elements[:, 0]
        window = np.where(is_constant[whole], state[whole], _OPEN).astype(np.uint8)
        constant_of = np.zeros(elements.shape[1], np.int64)
        constant_of[state[is_constant]] = np.flatnonzero(is_constant)
        table = np.concatenate([step, np.zeros((len(step), 1), step.dtype)], axis=1)
        return _Side(window, element, product.ravel(), len(product), state, is_constant, constant_of, table.ravel())

    def seen_above(self, symbol: np.ndarray) -> bool:
        """Is there a byte of a character of several bytes?"""
        return bool(symbol.max() == _MULTIBYTE)

    def decode(self, buffer: np.ndarray, symbol: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Symbols of all characters and the byte offset of each."""
        at = np.flatnonzero((buffer < 0x80) | (buffer >= 0xC0))
        symbol = symbol.take(at)
        many = np.flatnonzero(symbol == _MULTIBYTE)
        where = at.take(many)
        lead = buffer.take(where).astype(np.intp)
        second = buffer.take(where + 1) & 63
        three = lead >= 0xE0
        if three.all():
            point = (lead & 15) << 12 | second.astype(np.intp) << 6 | (buffer.take(where + 2) & 63)
        else:
            point = (lead & 31) << 6 | second
            which = np.flatnonzero(three)
            point[which] = (
                (lead[which] & 15) << 12 | second[which].astype(np.intp) << 6 | (buffer.take(where[which] + 2) & 63)
            )
        four = np.flatnonzero(lead >= 0xF0)
        if len(four):
            point[four] = (point[four] & 0x7FFF) << 6 | (buffer.take(where[four] + 3) & 63)
        symbol[many] = self.symbol.take(self.block.take(point >> 8) + (point & 255))
        return symbol, at

    def marks(self, symbol: np.ndarray) -> np.ndarray:
        """Marks of all characters; DROPPED at boundaries."""
        count, w, n = len(symbol), self.width, self.n
        if not count:
            return np.zeros(0, np.uint8)
        padded = np.empty(count + 2 * w, np.uint16)
        padded[:w] = padded[-w:] = n - 1
        padded[w:-w] = symbol
        before, behind, mark = (np.empty(count, np.uint8) for _ in range(3))
        for at in range(0, count, _CHUNK):
            stop = min(at + _CHUNK, count)
            part = padded[at : stop + 2 * w]
            key = part[:-1] * np.uint16(n)
            key += part[1:]
            if w == 3:
                key = key[:-1] * np.uint16(n)
                key += part[2:]
            key = key.astype(np.intp)
            self.left.window.take(key[: stop - at], out=before[at:stop], mode="clip")
            self.right.window.take(key[at - stop :], out=behind[at:stop], mode="clip")
        self._resolve(self.left, before, symbol)
        self._resolve(self.right, behind[::-1], symbol[::-1])
        for at in range(0, count, _CHUNK):
            block = slice(at, at + _CHUNK)
            index: np.ndarray = before[block].astype(self.out_key)
            index *= self.out_key(n)
            index += symbol[block]
            index *= self.out_key(self.n_right)
            index += behind[block]
            self.out.take(index.astype(np.intp), out=mark[block], mode="clip")
        return mark

    def _resolve(self, side: _Side, state: np.ndarray, symbol: np.ndarray) -> None:
        """Fill in, in place, the states that the window left open; both arrays in reading order."""
        if state.max() != _OPEN:
            return
        at = np.flatnonzero(state == _OPEN)  # never 0: the window there holds a boundary
        first = np.empty(len(at), bool)
        first[0] = True
        np.not_equal(at[1:], at[:-1] + 1, out=first[1:])
        element = side.element.take(symbol.take(at - 1))
        heads = at[first]
        known = side.step.take(state.take(heads - 1).astype(np.intp) * self.n + symbol.take(heads - 1))
        element[first] = side.constant_of.take(known)
        reach = 1
        while reach < len(at) and not side.is_constant.take(element).all():
            element[reach:] = side.product.take(element[:-reach] * side.stride + element[reach:])
            reach *= 2
        state[at] = side.state.take(element)

    def with_inner(
        self, starts: np.ndarray, ends: np.ndarray, symbol: np.ndarray, mark: np.ndarray, at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add the pieces that start inside a character."""
        assert self.inner is not None
        masks = self.inner.take(symbol)
        masks[mark == DROPPED] = 0
        more = [at[masks >> j & 1 == 1] + j for j in (1, 2, 3)]
        both = np.concatenate([starts, *more])
        if len(both) == len(starts):
            return starts, ends
        both.sort()
        stop = np.full(len(both), -1, np.int64)
        stop[np.searchsorted(both, ends, side="left") - 1] = ends
        following = np.append(both[1:], 0)
        return both, np.where(stop < 0, following, stop)


_scans: weakref.WeakKeyDictionary[PretokTables, HostScan] = weakref.WeakKeyDictionary()


def _scan_of(tables: PretokTables) -> HostScan:
    scan = _scans.get(tables)
    if scan is None:
        scan = _scans[tables] = HostScan(tables)
    return scan
