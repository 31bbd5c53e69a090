"""Cutting a long buffer where its parts can be tokenized apart: at boundaries and at certified cuts (NumPy)."""

from __future__ import annotations

import numpy as np

from toktier.pretok.tables import PretokTables

BOUNDARY = 0xFF
_WINDOWS = (1 << 8, 1 << 12, 1 << 16)  # bytes looked back through for a cut, before everything is


def last_cut(tables: PretokTables, buffer: np.ndarray, low: int, high: int) -> int:
    """The last place in (low, high] where the buffer may be cut, -1 if there is none.

    A place is a byte offset: the parts are buffer[:place] and buffer[place:].
    """
    for window in (*_WINDOWS, high - low):
        first = max(low, high - window)
        places = cuts(tables, buffer, first, high)
        if len(places):
            return int(places[-1])
        if first == low:
            break
    return -1


def cuts(tables: PretokTables, buffer: np.ndarray, low: int, high: int) -> np.ndarray:
    """int64[k]: every place in (low, high] where the buffer may be cut."""
    first = max(0, low - 4)  # the character before a place may begin up to four bytes earlier
    part = buffer[first : high + 4]
    leads = np.nonzero((part & 0xC0) != 0x80)[0]
    if len(leads) < 2:
        return np.zeros(0, np.int64)
    symbol = symbols(tables, part, leads)
    boundary = symbol < 0
    fit = tables.cut[symbol[:-1], symbol[1:]] | boundary[:-1] | boundary[1:]
    places = leads[1:] + first
    # the first lead may be the tail of a character cut off by the window only where the buffer itself is broken there
    return places[fit & (places > low) & (places <= high)]


def symbols(tables: PretokTables, part: np.ndarray, leads: np.ndarray) -> np.ndarray:
    """int64: symbol of the character at each lead byte, -1 at boundaries and at characters that the part cuts off."""
    padded = np.concatenate([part, np.zeros(4, np.uint8)]).astype(np.int64)
    byte, b1, b2, b3 = (padded[leads + k] for k in range(4))
    b1, b2, b3 = b1 & 63, b2 & 63, b3 & 63
    two, three = (byte & 31) << 6 | b1, (byte & 15) << 12 | b1 << 6 | b2
    four = (byte & 7) << 18 | b1 << 12 | b2 << 6 | b3
    point = np.where(byte < 0x80, byte, np.where(byte < 0xE0, two, np.where(byte < 0xF0, three, four)))
    point = np.minimum(point, 0x10FFFF)
    symbol = tables.symbol[tables.block[point >> 8].astype(np.int64) * 256 + (point & 255)].astype(np.int64)
    return np.where(byte == BOUNDARY, -1, symbol)


def plan(tables: PretokTables, buffer: np.ndarray, target: int) -> list[tuple[int, int]]:
    """Parts of the buffer that can be tokenized apart, each at most `target` bytes where a cut allows it.

    Where no cut lies within `target` bytes (one piece of a megabyte) the part reaches to the next cut behind it.
    """
    parts, start, n = [], 0, len(buffer)
    while n - start > target:
        place = last_cut(tables, buffer, start, start + target)
        reach = start + target
        while place <= start and reach < n:
            further = min(n, reach + 4 * target)
            found = cuts(tables, buffer, reach, min(further, n - 1))
            if len(found):
                place = int(found[0])
            reach = further
        if place <= start:
            break
        parts.append((start, place))
        start = place
    parts.append((start, n))
    return parts
