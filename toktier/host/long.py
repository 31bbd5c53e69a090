"""Very long pieces, in parts that stay in the processor's cache, put together exactly.

Tokens with the bytes of a text are its BPE if and only if each two neighbours are the BPE of their own bytes
(docs/merges.md, "Long pieces").  So a piece is cut anywhere, each part is merged as a text of its own, and only at the
seams the tokens beside them may be wrong: they are merged again, a few more each time, until both ends fit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toktier.bpe.tables import BpeTables

PART = 1 << 15  # bytes of a part; pieces of more than two are cut
_FIRST = 4  # tokens on either side of a seam that are merged again, to begin with


def parts_of(piece: bytes, size: int) -> list[bytes]:
    """The piece in parts of about `size` bytes, cut between characters."""
    parts, at = [], 0
    while len(piece) - at > 2 * size:
        stop = at + size
        while piece[stop] & 0xC0 == 0x80 and stop > at + 1:
            stop -= 1
        parts.append(piece[at:stop])
        at = stop
    return [*parts, piece[at:]]


class Seams:
    """Puts parts together.

    Args:
      tables: the vocabulary.
      encode: the ids of a stretch of UTF-8 by its merges.
    """

    def __init__(self, tables: BpeTables, encode: Callable[[bytes], list[int]]) -> None:
        self._blob, self._offsets = tables.token_blob, tables.token_offsets
        self._encode = encode

    def join(self, parts: list[np.ndarray]) -> np.ndarray | None:
        """int32: the ids of the whole from those of its parts; None where a seam reaches too far to be worth it."""
        done = parts[0]
        finished: list[np.ndarray] = []  # ids that no later seam looks at
        for part in parts[1:]:
            joined = self._seam(done, part, not finished)
            if joined is None:
                return None
            front, done = joined
            finished.append(front)
        return np.concatenate([*finished, done])

    def _seam(self, left: np.ndarray, right: np.ndarray, first: bool) -> tuple[np.ndarray, np.ndarray] | None:
        """The ids of both: those that no later seam touches, and the rest; `first`: nothing is in front of `left`."""
        width = 0
        while True:
            low, high = len(left) - width, width
            if low < 0 or high > len(right) or (low == 0 and not first):
                return None
            beside = [*left[low:].tolist(), *right[:high].tolist()]
            middle = self._encode(self._bytes(beside)) if beside else []
            before, behind = left[low - 1 : low].tolist(), right[high : high + 1].tolist()
            ends = [*before, *middle, *behind]
            # within the middle, and within what stays of either side, neighbours fit as they are
            fits = [(ends[0], ends[1])] if before and len(ends) > 1 else []
            fits += [(ends[-2], ends[-1])] if behind and len(ends) > 1 else []
            if all(self._fit(*pair) for pair in fits):
                return left[:low], np.concatenate([np.array(middle, np.int32), right[high:]])
            width = max(_FIRST, width * 2)

    def _fit(self, a: int, b: int) -> bool:
        """Are two tokens the BPE of their bytes?"""
        return self._encode(self._bytes([a, b])) == [a, b]

    def _bytes(self, tokens: list[int]) -> bytes:
        blob, offsets = self._blob, self._offsets
        return b"".join([blob[offsets[t] : offsets[t + 1]].tobytes() for t in tokens])
