"""Certified cuts: adjacent symbols between which every text may be cut and its two sides split apart."""

from __future__ import annotations

import numpy as np

from toktier.pretok.tables import INSIDE


def certified_cuts(left_next: np.ndarray, right_next: np.ndarray, out: np.ndarray) -> np.ndarray:
    """bool[S, S]: is marks(u x y v) == marks(u x) + marks(y v) for all texts u, v?

    Certified where neither side can see the other: whatever the left state before x, y is marked as at the start of a
    text and leaves the same left state; whatever the right state behind y, x is marked as at the end of a text and
    leaves the same right state.  As every state is reached by some text, this is also necessary for the states' part.
    A text's first mark is never INSIDE, so no piece spans a cut.
    """
    n = left_next.shape[1]
    cut = np.zeros((n, n), bool)
    fresh = (out[0] != INSIDE).all(axis=1)
    for x in range(n):
        before = np.unique(left_next[:, x])
        restarts = (left_next[before] == left_next[0]).all(axis=0) & (out[before] == out[0]).all(axis=(0, 2)) & fresh
        for y in np.flatnonzero(restarts):
            behind = np.unique(right_next[:, y])
            closes = (right_next[behind, x] == right_next[0, x]).all()
            cut[x, y] = closes and (out[:, x, behind] == out[:, x, :1]).all()
    return cut
