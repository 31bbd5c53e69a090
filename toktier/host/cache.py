"""Ids of pieces seen before: bounded, and without a lock.

Two generations of a plain dict.  New pieces go into the young one; when it is full it becomes the old one and the old
one is dropped, so that pieces in use survive.  Entries never change and a dict is never emptied, only replaced, so a
reader that holds one keeps a consistent view.  A lost entry is worked out again, to the same ids: what is in the cache
can change how long a call takes, never what it returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

LONGEST_PIECE = 128  # bytes; longer ones are seldom seen twice and would make the bound a poor one on memory
ENTRIES = 1 << 16  # of one generation; mostly 10 to 15 MB each, with their keys


class PieceCache:
    """piece -> its ids as packed int32 bytes.

    Args:
      entries: most entries of one generation.  Threads that add at the very same moment may exceed it by what they add.
    """

    def __init__(self, entries: int = ENTRIES):
        self.entries = entries
        self.young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def recall(self, pieces: Iterable[bytes]) -> dict[bytes, bytes]:
        """Those of `pieces` that the old generation holds."""
        old = self._old
        return {p: old[p] for p in pieces if p in old} if old else {}

    def add(self, found: dict[bytes, bytes]) -> None:
        """Keep what fits and is short enough."""
        fresh = found
        if len(found) > self.entries or max(map(len, found), default=0) > LONGEST_PIECE:
            fresh = {p: ids for p, ids in found.items() if len(p) <= LONGEST_PIECE}
            if len(fresh) > self.entries:
                fresh = dict(itertools.islice(fresh.items(), self.entries))
        young = self.young
        if len(young) + len(fresh) > self.entries:
            self._old, self.young = young, fresh
        else:
            young.update(fresh)
