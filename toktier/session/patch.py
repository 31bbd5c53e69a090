"""How ids change: the patch from old to new ids, without what both begin and end with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_FEW = 16  # ids up to which plain integers are compared quicker than arrays


class Patch(NamedTuple):
    """How the ids changed: `new = old[:start] + ids + old[start + removed:]`.

    start: tokens kept in front.  removed: tokens taken out behind them.  ids: int32[k], read-only, put in their place.
    """

    start: int
    removed: int
    ids: np.ndarray


def minimal(start: int, old: np.ndarray, new: np.ndarray) -> Patch:
    """The shortest patch by which `new` takes the place of `old`, int32[k] each, at token `start`."""
    front = _agreement(old, new)
    behind = _agreement(old[front:][::-1], new[front:][::-1])
    return Patch(start + front, len(old) - front - behind, frozen(new[front : len(new) - behind].copy()))


def nothing(at: int) -> Patch:
    """The patch of a change that changes no ids, at token `at`."""
    return Patch(at, 0, frozen(np.zeros(0, np.int32)))


def frozen(ids: np.ndarray) -> np.ndarray:
    """The ids as int32, read-only from now on."""
    ids = np.asarray(ids, np.int32)
    ids.flags.writeable = False
    return ids


def _agreement(a: np.ndarray, b: np.ndarray) -> int:
    """How many ids two arrays begin with in common."""
    n = min(len(a), len(b))
    if n <= _FEW:  # an append replaces a few ids
        for k, (x, y) in enumerate(zip(a[:n].tolist(), b[:n].tolist(), strict=True)):
            if x != y:
                return k
        return n
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
