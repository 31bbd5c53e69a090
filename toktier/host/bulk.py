"""Long texts: pieces met before are looked up side by side, and only the others are merged.

In a text of a quarter of a megabyte nine pieces of ten have been met a few pages before.  A piece of up to 16 bytes is
two numbers, which are the key of a table of ids: exact, since no text that comes here holds a zero byte.  Everything is
done for all pieces at once in NumPy, which leaves the interpreter free, so parts of a text run side by side.

Clauses of scripts without spaces are hardly ever met again; they are cut where no token lies across (segments.py).

A table belongs to one call at a time, which takes it from a shelf and puts it back, so threads share none.
"""

from __future__ import annotations

import numpy as np

from toktier.bpe.segments import segmenter_of
from toktier.bpe.tables import BpeTables
from toktier.host.compiled import CompiledMerger, takes

_KEY = 16  # bytes of a piece that can be a key
_SLOTS = 18  # bits of a slot
_ENTRIES = 1 << 17  # of a table; full, all are forgotten
_IDS = 1 << 20  # ids of a table, likewise
_WIDE = 16  # one byte in so many is of a character of several: the text is cut into segments
_MASKS = np.array([(1 << 8 * k) - 1 for k in range(9)], np.uint64)
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd numbers that spread the keys
_SHIFT = np.uint64(64 - _SLOTS)


class BulkMerger:
    """BPE of all pieces of a long text.  Safe from any thread; the ids of a piece are remembered, in bounded memory.

    Args:
      tables: the vocabulary.
      merger: merges what was not met before.
    """

    def __init__(self, tables: BpeTables, merger: CompiledMerger) -> None:
        self._tables, self._merger = tables, merger
        self._shelf: list[_Met] = []

    def encode_text(self, raw: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
        """int32: the ids of a text in pieces, joined; None where they cannot be told.

        Args:
          raw: uint8[n], UTF-8; every byte outside the pieces is 0xFF, and none is zero.
          starts, ends: int64[k], the pieces.
        """
        if not takes(starts, ends):
            return None
        first, last = starts, ends
        if np.count_nonzero(raw >= 0x80) * _WIDE >= len(raw):
            first, last = _cut(len(raw), starts, ends, segmenter_of(self._tables).places(raw))
        try:
            met = self._shelf.pop()
        except IndexError:
            met = _Met()
        ids = met.encode(self._merger, raw, first, last)
        self._shelf.append(met)  # one that an error interrupted is not put back
        return self._merger.checked(ids, raw, starts, ends)


class _Met:
    """Pieces that were met: `slot -> entry -> key and place of its ids`."""

    def __init__(self) -> None:
        self._entry = np.zeros(1 << _SLOTS, np.int32)  # entry 0 has a key that no piece has
        self._keys = np.zeros((2, _ENTRIES), np.uint64)
        self._at, self._count = np.zeros((2, _ENTRIES), np.int32)
        self._ids = np.zeros(1 << 14, np.int32)
        self._entries, self._used = 1, 0

    def encode(self, merger: CompiledMerger, raw: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """The ids of all pieces, joined."""
        if self._entries == _ENTRIES or self._used > _IDS:
            self._entry[:] = 0
            self._entries, self._used = 1, 0
        size = ends - starts
        low, high = _keys(raw, starts, size)
        slot = ((low * _FIRST ^ high * _SECOND) * _FIRST >> _SHIFT).astype(np.intp)
        entry = self._entry.take(slot)
        known = self._keys[0].take(entry) == low
        known &= self._keys[1].take(entry) == high
        known &= size <= _KEY
        at, count = self._at.take(entry), self._count.take(entry)
        new = np.flatnonzero(~known)
        if len(new):
            where, many, which = self._merge(merger, raw.tobytes(), starts[new].tolist(), ends[new].tolist())
            at[new], count[new] = where.take(which), many.take(which)
            one = np.empty(len(where), np.intp)
            one[which] = new  # of equal pieces one, whichever
            new = one[size[one] <= _KEY][: _ENTRIES - self._entries]
            fresh = slice(self._entries, self._entries + len(new))
            self._keys[0, fresh], self._keys[1, fresh] = low[new], high[new]
            self._at[fresh], self._count[fresh] = at[new], count[new]
            self._entry[slot[new]] = np.arange(fresh.start, fresh.stop, dtype=np.int32)
            self._entries = fresh.stop
        stop = count.cumsum()
        where = np.repeat(at - (stop - count), count)
        where += np.arange(len(where))
        return self._ids.take(where)

    def _merge(
        self, merger: CompiledMerger, data: bytes, starts: list[int], ends: list[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the ids of some pieces, equal ones once, are in `_ids`, how many each has, and which each piece is."""
        pieces = [data[i:j] for i, j in zip(starts, ends, strict=True)]
        number = {piece: k for k, piece in enumerate(dict.fromkeys(pieces))}
        ids, stops = merger.merge(list(number))
        if self._used + len(ids) > len(self._ids):
            self._ids = np.concatenate([self._ids[: self._used], np.empty(self._used + 2 * len(ids), np.int32)])
        self._ids[self._used : self._used + len(ids)] = ids
        begins = np.append(0, stops[:-1])
        which = np.fromiter(map(number.__getitem__, pieces), np.intp, len(pieces))
        where = self._used + begins
        self._used += len(ids)
        return where, stops - begins, which


def _keys(raw: np.ndarray, starts: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """uint64: bytes 0 to 7 and 8 to 15 of each piece, zero behind its end."""
    padded = np.concatenate([raw, np.zeros(_KEY, np.uint8)])
    words = np.ndarray((len(raw) + 8,), "<u8", padded, strides=(1,))  # eight bytes from each place on
    low, high = words[starts], words[starts + np.minimum(size, 8)]
    low &= _MASKS.take(np.minimum(size, 8))
    high &= _MASKS.take(np.clip(size - 8, 0, 8))
    return low, high


def _cut(n: int, starts: np.ndarray, ends: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the parts of pieces that are cut at some places; a place outside the pieces counts for nothing."""
    mark = np.zeros(n + 1, bool)
    mark[places] = True
    mark[ends] = False
    mark[starts] = True
    first = np.flatnonzero(mark)
    last = np.append(first[1:], n)
    last[np.append(np.searchsorted(first, starts[1:]), len(first)) - 1] = ends
    return first, last
