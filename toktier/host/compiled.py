"""Merges of many short pieces by tiktoken's compiled loop, over the effective merges of any vocabulary.

tiktoken merges the two neighbours whose joined bytes have the lowest number, leftmost of equals.  Given the products of
the effective merges, each numbered by its rank, that is this vocabulary's own BPE, whichever rule it came with: an
effective merge is the only pair that ever stands where its product may be made (docs/merges.md, 1).  It is built where
many pieces are to come, for it takes some 150 ms and 45 MB.

The premise is proved, and watched all the same: pieces are merged in plain Python too when it is made, and one in
`WATCHED` afterwards; a difference ends its use.
"""

from __future__ import annotations

import itertools
import warnings
from array import array
from collections.abc import Callable, Sequence

import numpy as np

from toktier.bpe.tables import BpeTables

LONGEST = 96  # bytes of a piece; longer ones are few, and near-linear elsewhere
WATCHED = 4096
_BETWEEN = b"\0"  # stands between the pieces of one call
_FIRST = 64  # pieces compared before the first use


class CompiledMerger:
    """BPE of pieces that are no token as a whole.

    Args:
      tables: the vocabulary.
      plain: ids of one piece by other means, to compare with.
    """

    def __init__(self, tables: BpeTables, plain: Callable[[bytes], list[int]]) -> None:
        import tiktoken

        offsets, blob = tables.token_offsets.tolist(), tables.token_blob.tobytes()
        products = tables.product.tolist()
        ranks = {blob[offsets[t] : offsets[t + 1]]: rank for rank, t in enumerate(products)}
        ranks.update({bytes([b]): len(products) + b for b in range(256)})
        self._encoding = tiktoken.Encoding(
            "effective merges", pat_str=r"[^\x00]+|\x00", mergeable_ranks=ranks, special_tokens={}
        )
        self._ids = np.concatenate([tables.product, tables.byte_token]).astype(np.int32)
        self._between = len(products) + _BETWEEN[0]
        self._plain = plain
        self._until = WATCHED
        some = list(itertools.islice(ranks, 0, len(ranks), max(1, len(ranks) // _FIRST)))
        pieces = [a + b for a, b in itertools.pairwise(some) if fits(a + b)]
        self.usable = self._watch(pieces, self._merged(pieces))

    def encode(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Packed int32 ids of each piece; all of them `fit`."""
        found = self._merged(pieces)
        self._until -= len(pieces)
        if self._until < 0:
            self._until = WATCHED
            if not self._watch(pieces[:1], found[:1]):
                self.usable = False
                return [array("i", self._plain(p)).tobytes() for p in pieces]
        return found

    def _merged(self, pieces: Sequence[bytes]) -> list[bytes]:
        if not pieces:
            return []
        ranks = self._encoding.encode_ordinary(_BETWEEN.join(pieces).decode())
        packed = self._ids.take(ranks).tobytes()
        between = self._between
        ends = [4 * i for i, rank in enumerate(ranks) if rank == between]
        return [packed[i:j] for i, j in zip([0, *[e + 4 for e in ends]], [*ends, len(packed)], strict=True)]

    def _watch(self, pieces: Sequence[bytes], found: Sequence[bytes]) -> bool:
        for piece, ids in zip(pieces, found, strict=True):
            if (want := array("i", self._plain(piece)).tobytes()) != ids:
                warnings.warn(
                    f"tiktoken's loop over the effective merges made {list(array('i', ids))} of {piece!r}, plain "
                    f"Python {list(array('i', want))}: plain Python goes on alone. Please report this",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return False
        return True


def all_fit(pieces: Sequence[bytes]) -> bool:
    """Does each of the pieces fit?"""
    together = _BETWEEN.join(pieces)
    if together.isascii() and together.count(0) == len(pieces) - 1 and max(map(len, pieces)) <= LONGEST:
        return True
    return all(map(fits, pieces))


def fits(piece: bytes) -> bool:
    """May the piece be one of a call?  It is short, whole UTF-8, and free of what stands between pieces."""
    if len(piece) > LONGEST or b"\0" in piece:
        return False
    if piece.isascii():
        return True
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
