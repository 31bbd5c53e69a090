"""Ids of short texts in one pass of tiktoken's compiled loop, pieces and merges together.

The pattern that never looks ahead (pretok/seamed.py) runs in tiktoken's own engine, where it costs what leaving zero
bytes out costs, so that no piece of a short text becomes a Python object.  It takes a second copy of the vocabulary, as
far as its tokens are of the pattern's bytes: 40 to 60 MB.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable

import numpy as np

from toktier.host.compiled import CompiledMerger, loop, ranks_of
from toktier.pretok.seamed import BYTES, SeamedText

WATCHED = 1 << 18  # bytes from one comparison to the next


class SeamedMerger:
    """Exact ids of short texts of the pattern's bytes; safe from any thread, the interpreter is free meanwhile.

    Args:
      ranks: of `compiled.effective_ranks`.  text: the pattern.  merger: what merges pieces given one by one.
      pieces: the pieces of a text by other means, to compare with, or None.
    """

    def __init__(
        self,
        ranks: dict[bytes, int],
        text: SeamedText,
        merger: CompiledMerger,
        pieces: Callable[[bytes], list[str] | None],
    ) -> None:
        ranks = {t: rank for t, rank in ranks.items() if len(t) == 1 or not t.translate(None, BYTES)}
        self._encoding = loop(ranks, text.pattern)
        self._text, self._merger, self._pieces = text, merger, pieces
        self._packed = merger.packed()  # one look for id and length: each costs a miss of the cache
        self._parts = merger.parts()
        self._until = WATCHED
        some = b"".join([t for t in ranks if t.isascii() and b"\0" not in t][:: len(ranks) >> 8 or 1])
        found = self._completed(some, *self._found(some))
        self.usable = found is not None and self._agrees(some, found[0])

    def encode(self, data: bytes) -> tuple[np.ndarray, np.ndarray] | None:
        """The ids of a text, int32, and the bytes of each, int64; None where another way has to.

        Args:
          data: UTF-8 without a zero byte, 0xFF as boundary.
        """
        if not self.usable:
            return None
        joined = data
        if b"\xff" in data:
            if self._text.ends:
                return None
            joined = data.replace(b"\xff", b"\0")
        if not joined.isascii() and joined.translate(None, BYTES):
            return None
        found = self._completed(data, *self._found(joined))
        self._until -= len(data)
        if self._until < 0 and found is not None:
            self._until = WATCHED
            self.usable = self._agrees(data, found[0])
        return found if self.usable else None

    def _completed(
        self, data: bytes, ids: np.ndarray, lengths: np.ndarray, lacking: bool
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Ids and lengths with the tokens that no merges make; None where the pieces are needed and not to be had."""
        if lacking:
            found = self._merger.completed(ids, functools.partial(self._pieces, data))
            if found is None:
                return None
            if found is not ids:
                return found, self._merger.lengths(found)
        return ids, lengths

    def _found(self, data: bytes) -> tuple[np.ndarray, np.ndarray, bool]:
        """Ids, lengths, and whether a token that no merges make may be missing among them."""
        ranks = ranks_of(self._encoding, self._text.sew(data.decode()))
        lengths = self._packed.take(ranks)
        ids = lengths.astype(np.int32)
        lengths >>= 32
        if self._parts is None:
            return ids, lengths, False
        parts = int.from_bytes(self._parts.take(ranks).tobytes(), "little")  # as one number: quicker than as an array
        return ids, lengths, parts & parts >> 9 > 0  # bit 0 of a byte, and bit 1 of the next

    def _agrees(self, data: bytes, ids: np.ndarray) -> bool:
        pieces = self._pieces(data)
        want = self._merger.encode_words(pieces) if pieces else None
        if want is None or np.array_equal(want, ids):
            return True
        warnings.warn(
            f"tiktoken's loop cut a text of {len(data)} bytes otherwise than `re` does: pieces are found by `re` "
            "from now on. Please report this",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
