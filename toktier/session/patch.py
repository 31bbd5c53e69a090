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
    if len(old) <= _FEW:  # an append replaces a few ids
        front, behind = _ends_in_common(old.tolist(), new)
    else:
        front = _agreement(old, new)
        behind = _agreement(old[front:][::-1], new[front:][::-1])
    return Patch(start + front, len(old) - front - behind, frozen(new[front : len(new) - behind].copy()))


def nothing(at: int) -> Patch:
    """The patch of a change that changes no ids, at token `at`."""
    return Patch(at, 0, frozen(np.zeros(0, np.int32)))


def frozen(ids: np.ndarray) -> np.ndarray:
    """The ids as int32, read-only from now on."""
    ids = np.asarray(ids, np.int32)
    ids.setflags(write=False)
    return ids


def _ends_in_common(old: list[int], new: np.ndarray) -> tuple[int, int]:
    """How many ids a few begin and, of the rest, end with in common with others."""
    n = min(len(old), len(new))
    first = new[:n].tolist()
    front = behind = 0
    while front < n and old[front] == first[front]:
        front += 1
    last = new[len(new) - n :].tolist() if front < n else first
    while behind < n - front and old[-1 - behind] == last[-1 - behind]:
        behind += 1
    return front, behind


def _agreement(a: np.ndarray, b: np.ndarray) -> int:
    """How many ids two arrays begin with in common."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
