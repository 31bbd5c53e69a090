"""The host engine: a buffer in, ids and ends out, in NumPy and dictionaries.

Made for short text: an append of 2,000 characters is some 400 pieces, nearly all seen before, so a call is one slice
and one dictionary look-up a piece, and the joined values are the ids.  A piece not seen before is looked up as a whole
in the device's tables; what is left is merged, a few pieces in plain Python, many at a time in NumPy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Protocol

import numpy as np

from toktier.bpe.tables import BpeTables
from toktier.encoded import Encoded
from toktier.host.cache import ENTRIES, PieceCache
from toktier.host.rounds import RoundMerger
from toktier.host.short import PieceMerger
from toktier.host.whole import NONE, find_whole
from toktier.pretok.host_scan import piece_bounds
from toktier.pretok.tables import PretokTables

_SLAB = 1 << 17  # pieces held as Python objects at a time
_MANY = 1 << 14  # pieces of one call for which a copy of the cache pays
_FEW = 3072  # bytes of pieces to merge; from here on NumPy rounds beat plain Python


class Tables(Protocol):
    """What the engine needs."""

    @property
    def pretok(self) -> PretokTables:
        """The pre-tokenizer."""

    @property
    def bpe(self) -> BpeTables:
        """The vocabulary."""


class HostEngine:
    """Exact ids without a device; safe from any thread, picklable.

    Args:
      tables: `tables.pretok` and `tables.bpe`.
      cache_entries: pieces whose ids are remembered, in each of two generations.  No value changes a result.
    """

    def __init__(self, tables: Tables, cache_entries: int = ENTRIES):
        self.tables = tables
        self._pretok, self._bpe = tables.pretok, tables.bpe
        self._length = np.ascontiguousarray(tables.bpe.token_length)
        self._single = PieceMerger(tables.bpe)
        self._rounds = RoundMerger(tables.bpe, self._single)
        self.cache = PieceCache(cache_entries)

    def __reduce__(self):
        return HostEngine, (self.tables, self.cache.entries)

    def encode_buffer(self, buffer: np.ndarray | bytes) -> Encoded:
        """Ids of a buffer.

        Args:
          buffer: uint8[n] or bytes; UTF-8, 0xFF as boundary.

        Returns:
          Encoded(ids int32[k], ends int64[k]).
        """
        data, raw = _both(buffer)
        starts, ends = piece_bounds(self._pretok, raw)
        packed = bytearray().join(
            self._packed(data, starts[i : i + _SLAB], ends[i : i + _SLAB]) for i in range(0, len(starts), _SLAB)
        )
        ids = np.frombuffer(packed, np.int32)
        return Encoded(ids, self._token_ends(ids, starts, ends))

    def piece_marks(self, buffer: np.ndarray | bytes) -> np.ndarray:
        """int64[p]: byte offset of every piece's start."""
        return np.asarray(piece_bounds(self._pretok, _both(buffer)[1])[0], np.int64)

    def encode_pieces(self, pieces: list[bytes]) -> list[bytes]:
        """Ids of each piece as packed int32 bytes; none is empty, each is a stretch of UTF-8."""
        known = self.cache.young
        try:
            return list(map(known.__getitem__, pieces))
        except KeyError:
            pass
        found = self._work_out(set(pieces).difference(known))
        if len(pieces) < _MANY:
            return [known.get(p) or found[p] for p in pieces]
        return list(map((known | found).__getitem__, pieces))

    def _packed(self, data: bytes, starts: np.ndarray, ends: np.ndarray) -> bytes:
        pieces = [data[i:j] for i, j in zip(starts.tolist(), ends.tolist(), strict=True)]
        return b"".join(self.encode_pieces(pieces))

    def _work_out(self, pieces: Iterable[bytes]) -> dict[bytes, bytes]:
        """Ids of pieces that the young cache does not hold; they are in it afterwards, as far as it takes them."""
        pieces = list(pieces)
        recalled = self.cache.recall(pieces)
        if recalled:
            pieces = [p for p in pieces if p not in recalled]
        whole = find_whole(self._bpe, pieces)
        packed = whole.tobytes()
        found = dict(zip(pieces, [packed[i : i + 4] for i in range(0, len(packed), 4)], strict=True))
        rest = [pieces[k] for k in np.flatnonzero(whole == NONE).tolist()]
        found.update(zip(rest, self._merged(rest), strict=True))
        found.update(recalled)
        self.cache.add(found)
        return found

    def _merged(self, pieces: list[bytes]) -> Iterable[bytes]:
        if sum(map(len, pieces)) <= _FEW:
            return [array("i", self._single.encode(p)).tobytes() for p in pieces]
        return [ids.tobytes() for ids in self._rounds.encode(pieces)]

    def _token_ends(self, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Byte end of each token: the running sum of lengths, plus what lies in no piece before it."""
        token_ends = np.cumsum(self._length[ids], dtype=np.int64)
        if not len(starts):
            return token_ends
        outside = starts.astype(np.int64)
        outside[1:] -= ends[:-1]  # bytes in front of each piece that are in none
        gap = np.flatnonzero(outside)
        if len(gap):
            skipped = np.cumsum(outside[gap])
            covered = starts[gap] - skipped  # bytes of pieces in front of each gap
            before = np.searchsorted(covered, token_ends)  # gaps in front of each token: those with covered < its end
            token_ends += np.append(0, skipped)[before]
        return token_ends


def _both(buffer: np.ndarray | bytes) -> tuple[bytes, np.ndarray]:
    if isinstance(buffer, bytes):
        return buffer, np.frombuffer(buffer, np.uint8)
    raw = np.ascontiguousarray(buffer, np.uint8)
    return raw.tobytes(), raw
