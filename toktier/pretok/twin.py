"""The bimachine as plain loops: the executable specification of every fast scan."""

from __future__ import annotations

from toktier.pretok.tables import DROPPED, INSIDE, START, PretokTables

BOUNDARY_BYTE = 0xFF


def marks(tables: PretokTables, text: str | bytes) -> list[int]:
    """Mark of every byte of UTF-8 `text`, in which 0xFF is the boundary: START, INSIDE, or DROPPED.

    Every byte of a dropped character, and a boundary, is DROPPED.

    >>> from toktier.pretok.store import load_tables
    >>> tables = load_tables('{"type": "ByteLevel", "add_prefix_space": false}', "tokenizers")
    >>> marks(tables, "It's")
    [1, 0, 1, 0]
    """
    data = text.encode() if isinstance(text, str) else bytes(text)
    characters = _characters(tables, data)
    right = 0
    behind = []
    for _, _, x in reversed(characters):
        behind.append(right)
        right = 0 if x < 0 else int(tables.right_next[right, x])
    behind.reverse()
    out = [DROPPED] * len(data)
    left = 0
    for (at, width, x), right in zip(characters, behind, strict=True):
        if x < 0:
            left = 0
            continue
        mark = int(tables.out[left, x, right])
        left = int(tables.left_next[left, x])
        if mark != DROPPED:
            out[at : at + width] = [mark] + [START if tables.inner[x] >> j & 1 else INSIDE for j in range(1, width)]
    return out


def piece_bounds(tables: PretokTables, text: str | bytes) -> tuple[list[int], list[int]]:
    """Byte offsets where pieces start and end (exclusive)."""
    starts: list[int] = []
    ends: list[int] = []
    found = marks(tables, text)
    for at, mark in enumerate([*found, DROPPED]):
        if mark != INSIDE and len(ends) < len(starts):
            ends.append(at)
        if mark == START:
            starts.append(at)
    return starts, ends


def _characters(tables: PretokTables, data: bytes) -> list[tuple[int, int, int]]:
    """(byte offset, bytes, symbol) of every character; a boundary has symbol -1."""
    found = []
    at = 0
    while at < len(data):
        if data[at] == BOUNDARY_BYTE:
            found.append((at, 1, -1))
            at += 1
            continue
        width = 1 if data[at] < 0x80 else 2 if data[at] < 0xE0 else 3 if data[at] < 0xF0 else 4
        point = ord(data[at : at + width].decode())
        found.append((at, width, int(tables.symbol[int(tables.block[point >> 8]) * 256 + (point & 255)])))
        at += width
    return found
