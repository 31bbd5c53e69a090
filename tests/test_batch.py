"""Flat ids with row offsets: what a batch holds, and that no count overflows."""

from __future__ import annotations

import numpy as np
import pytest

from toktier.batch import Batch, stacked_offsets
from toktier.errors import InputError


def _virtual(count: int) -> np.ndarray:
    """int32[count] that takes four bytes of memory."""
    return np.broadcast_to(np.array(7, np.int32), (count,))


def test_rows_lie_where_the_offsets_say() -> None:
    batch = Batch(np.arange(6, dtype=np.int32), np.array([0, 2, 2, 6], np.int64))
    assert len(batch) == 3
    assert [row.tolist() for row in batch] == batch.to_lists() == [[0, 1], [], [2, 3, 4, 5]]
    assert batch[-1].tolist() == [2, 3, 4, 5]
    assert batch.lengths.tolist() == [2, 0, 4]
    assert batch.padded(-1).tolist() == [[0, 1, -1, -1], [-1] * 4, [2, 3, 4, 5]]
    with pytest.raises(IndexError):
        batch[3]
    with pytest.raises(InputError, match="length=3 is less than the 4 ids of row 2"):
        batch.padded(length=3)


def test_more_ids_than_an_int32_counts() -> None:
    """Offsets of more than 2**31 ids, from the lengths alone."""
    lengths = np.array([2**30, 5, 2**31 + 3, 0, 2**30], np.int64)
    groups = [np.array([0, n], np.int64) for n in lengths.tolist()]
    offsets = stacked_offsets(groups)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [0, *np.cumsum(lengths).tolist()]
    batch = Batch(_virtual(int(offsets[-1])), offsets)
    assert batch.lengths.tolist() == lengths.tolist()
    assert len(batch[2]) == 2**31 + 3
    assert len(batch[4]) == 2**30


def test_stacked_offsets_of_nothing() -> None:
    assert stacked_offsets([]).tolist() == [0]
    assert stacked_offsets([np.zeros(1, np.int64), np.array([0, 2, 3], np.int64)]).tolist() == [0, 2, 3]
