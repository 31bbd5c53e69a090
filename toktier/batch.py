"""The ids of many texts in one flat array."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from toktier.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Ids of n texts, one row each.

    Attributes:
      ids: int32[k], all rows one after another.
      offsets: int64[n + 1]; row i is `ids[offsets[i]:offsets[i + 1]]`.

    >>> import toktier
    >>> batch = toktier.load("o200k_base").encode_batch(["hello world", "", "hi"])
    >>> batch.to_lists()
    [[24912, 2375], [], [3686]]
    >>> batch.padded(-1).tolist()
    [[24912, 2375], [-1, -1], [3686, -1]]
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        """int32: the ids of one text, a view."""
        k = range(len(self))[row]
        return self.ids[self.offsets[k] : self.offsets[k + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self)))

    @property
    def lengths(self) -> np.ndarray:
        """int64[n]: ids of each row."""
        return np.diff(self.offsets)

    def to_lists(self) -> list[list[int]]:
        """The rows as lists of int."""
        flat, at = self.ids.tolist(), self.offsets.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(at)]

    def padded(self, value: int = 0, length: int | None = None) -> np.ndarray:
        """int32[n, length]: the rows from the left, `value` behind them; `length` is the longest row's unless given.

        Raises:
          InputError: a row is longer than `length`.
        """
        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        width = longest if length is None else length
        if width < longest:
            row = int(np.argmax(lengths > width))
            raise InputError(f"length={length} is less than the {lengths[row]} ids of row {row}; truncate first")
        out = np.full((len(self), width), value, np.int32)
        out[np.arange(width) < lengths[:, None]] = self.ids
        return out


def stacked_offsets(offsets: Sequence[np.ndarray]) -> np.ndarray:
    """int64[n + 1]: the row offsets of several batches laid one after another, each int64[n_k + 1] from 0."""
    starts = np.cumsum([0, *(int(o[-1]) for o in offsets)], dtype=np.int64)
    moved = (o[1:] + start for o, start in zip(offsets, starts, strict=False))
    return np.concatenate([np.zeros(1, np.int64), *moved], dtype=np.int64)
