"""Segments: a piece falls apart where no token of the vocabulary could lie.

A merge across the place between two neighbouring characters makes a token that holds the end of the one and the
beginning of the other.  Where no token that can come out does, nothing is ever merged across the place, and the two
sides are merged as if they stood alone (docs/merges.md, "Pieces").  A clause of Chinese, which is one piece that nobody
saw before, so becomes a dozen short segments seen many times.

Kept are two sets: the pairs of whole characters inside tokens, as bits by hash (a pair that shares a bit with another
is not cut, which changes nothing but the time), and, for tokens that begin or end inside a character, the pairs of the
last byte of the one and the first byte of the other.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from toktier.bpe.tables import BpeTables

Array = Any

_BITS = 20
_MULTIPLIER = np.uint32(0x9E3779B1)  # odd; spreads the first character's number over the word
_TOP = np.uint32(32 - _BITS)
_BOUNDARY = np.uint8(0xFF)


class _Characters(NamedTuple):
    """Offset of each byte that does not continue a character, the character's number, and is all of it there?"""

    at: np.ndarray
    point: np.ndarray
    whole: np.ndarray


class Segmenter:
    """Cuts pieces where no token lies across.  Immutable; made when first needed, in 10 to 20 ms.

    Args:
      tables: the vocabulary.
      whole: also leave alone what is a token only as a whole piece, which no merges make.

    Attributes:
      joined: bool[2**20], by `hash_pair` of two characters: may a token lie across?
      partial: bool[65536], the same by the bytes on both sides, byte before << 8 | byte behind.
    """

    def __init__(self, tables: BpeTables, whole: bool = False) -> None:
        self.joined = np.zeros(1 << _BITS, bool)
        self.partial = np.zeros(1 << 16, bool)
        chosen = np.zeros(tables.n_ids, bool)
        chosen[tables.product] = True
        if whole:
            chosen |= tables.whole
        sizes = np.diff(tables.token_offsets)
        # a place between two ASCII characters is never cut, which leaves a quarter of a vocabulary to look at
        wide = np.append(0, np.cumsum(tables.token_blob >= 0x80))
        chosen &= wide[tables.token_offsets[1:]] > wide[tables.token_offsets[:-1]]
        sizes = sizes[chosen]
        stop = np.cumsum(sizes + 1)
        data = np.full(int(sizes.sum()) + len(sizes) + 1, _BOUNDARY)
        inner = np.ones(len(data), bool)
        inner[0] = inner[stop] = False
        blob_at = np.repeat(tables.token_offsets[:-1][chosen] - (stop - sizes), sizes) + np.flatnonzero(inner)
        data[inner] = tables.token_blob[blob_at]
        at, point, complete = _characters(data)
        first, second = at[:-1], at[1:]
        # places inside a token where a character begins
        inside = (data[second] != _BOUNDARY) & ((data[first] != _BOUNDARY) | (second - first > 1))
        both = inside & complete[:-1] & complete[1:]
        self.joined[hash_pair(point[:-1][both], point[1:][both])] = True
        self.partial[_bytes_beside(data, second[inside & ~both])] = True

    def places(self, data: np.ndarray) -> np.ndarray:
        """int64: the offsets in a text, uint8[n], across which no token lies."""
        characters = _characters(data)
        return characters.at[1:][self._apart(data, characters)]

    def _apart(self, data: np.ndarray, characters: _Characters) -> np.ndarray:
        """bool, for each character but the first: does no token lie across its beginning?"""
        at, point, whole = characters
        apart = whole[:-1] & whole[1:] & ~self.joined[hash_pair(point[:-1], point[1:])]
        apart &= (point[:-1] | point[1:]) >= 0x80
        apart &= ~self.partial[_bytes_beside(data, at[1:])]
        return apart

    def split(self, pieces: list[bytes]) -> tuple[list[bytes], list[int]]:
        """The segments of all pieces in order, and how many each piece has.  No piece is empty."""
        joined = b"\xff".join(pieces)
        data = np.frombuffer(joined, np.uint8)
        characters = _characters(data)
        apart = self._apart(data, characters)
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
        stop = np.cumsum(sizes + 1) - 1
        begin = stop - sizes
        starts = np.sort(np.concatenate([begin, characters.at[1:][apart]]))
        counts = np.diff(np.append(np.searchsorted(starts, begin), len(starts)))
        ends = np.append(starts[1:], len(data))
        ends[np.cumsum(counts) - 1] = stop
        return [joined[i:j] for i, j in zip(starts.tolist(), ends.tolist(), strict=True)], counts.tolist()


_made: weakref.WeakKeyDictionary[BpeTables, Segmenter] = weakref.WeakKeyDictionary()


def segmenter_of(tables: BpeTables) -> Segmenter:
    """The segmenter of a vocabulary, which all who need it share."""
    made = _made.get(tables)
    if made is None:
        made = _made[tables] = Segmenter(tables)
    return made


def _size(lead: np.ndarray) -> np.ndarray:
    """Bytes of a character by its first byte."""
    return 1 + (lead >= 0xC0).astype(np.int64) + (lead >= 0xE0) + (lead >= 0xF0)


def _characters(data: np.ndarray) -> _Characters:
    """The characters of some bytes; none lies across a boundary, which is no whole one itself."""
    at = np.flatnonzero((data & 0xC0) != 0x80)
    lead = data[at]
    size = _size(lead)
    point = lead.astype(np.uint32)
    many = np.flatnonzero((lead >= 0xC0) & (lead != _BOUNDARY))
    if len(many):
        padded = np.append(data, np.zeros(3, np.uint8))
        where, sizes, top = at[many], size[many], lead[many].astype(np.uint32)
        b1, b2 = padded[where + 1].astype(np.uint32) & 63, padded[where + 2] & 63
        found = np.where(sizes == 2, (top & 31) << 6 | b1, (top & 15) << 12 | b1 << 6 | b2)
        four = np.flatnonzero(sizes == 4)
        if len(four):
            found[four] = found[four] << 6 | padded[where[four] + 3] & 63
        point[many] = found
    whole = np.diff(at, append=len(data)) == size  # as many bytes follow as belong to it
    return _Characters(at, point, whole & (lead != _BOUNDARY))


def _bytes_beside(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The bytes in front of and at some places, as one number."""
    return data[at - 1].astype(np.intp) << 8 | data[at]


def hash_pair(a: Array, b: Array) -> Array:
    """uint32: where two characters, uint32 code points of NumPy or traced ones, have their bit."""
    return (a * _MULTIPLIER ^ b) * _MULTIPLIER >> _TOP
