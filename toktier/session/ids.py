"""The ids of a session: one contiguous int32 array with a gap where the last change was (a gap buffer).

An append writes behind the last id and moves nothing; repeated edits in one place move what lies between them.

A view handed out never changes under its holder.  A write that would touch it goes to a second array, a copy at first.
The array left behind is kept as a *spare*, with the changes that it misses: once its holder has let go it is brought up
to date by these and takes its turn, so whoever holds the latest view at each change costs two small writes and no copy.
"""

from __future__ import annotations

import weakref

import numpy as np

_CHANGE = 8  # what a change that a spare misses counts for, beside its ids
_FEW = 1 << 10  # ids, likewise, that a spare may miss however short it is
_TYPE = np.dtype(np.int32).str


class _Group:
    """All leases of one array: alive as long as one of them is."""

    __slots__ = ("__weakref__",)


class _Lease:
    """Owner of a view handed out: lives exactly as long as the view or anything derived from it."""

    __slots__ = ("__array_interface__", "group", "keep")

    def __init__(self, data: np.ndarray, base: int, length: int, group: _Group) -> None:
        self.keep, self.group = data, group
        pointer = (base, True)  # True: read-only
        self.__array_interface__ = {"shape": (length,), "typestr": _TYPE, "data": pointer, "version": 3}


class IdBuffer:
    """Growable int32 array of ids with `splice` in time of the change.

    `touched` counts the array elements written or moved so far, `regrown` those copied into a larger array (at most
    some nine for each id that was ever put in), `copies` the copies of the whole array that a view still alive, or a
    fork, made necessary.
    """

    __slots__ = (
        "_base", "_data", "_gap", "_lease", "_leased", "_missed", "_missing", "_peak", "_shared", "_size", "_spare",
        "copies", "regrown", "touched",
    )  # fmt: skip

    _spare: IdBuffer | None
    _missed: list[tuple[int, int, np.ndarray]]  # changes that the spare has not seen
    _missing: int  # numbers in them
    _peak: int  # most ids since

    def __init__(self, ids: np.ndarray | None = None) -> None:
        source = np.zeros(0, np.int32) if ids is None else np.asarray(ids, np.int32)
        self._size = len(source)
        self._data = np.empty(_capacity(self._size), np.int32)
        self._base: int = self._data.ctypes.data
        self._data[: self._size] = source
        self._gap = self._size  # the gap is [_gap, _gap + capacity - size)
        self._lease: weakref.ref[_Group] | None = None
        self._leased = 0
        self._shared = False
        self._forget_spare()
        self.touched = self._size
        self.copies = self.regrown = 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes of the array, its spare room included, and of the spare."""
        return self._data.nbytes + (0 if self._spare is None else self._spare._data.nbytes)

    def view(self) -> np.ndarray:
        """int32[n], read-only, no copy; closes the gap first (one memmove of what lies behind it)."""
        if self._size == 0:
            empty = np.zeros(0, np.int32)
            empty.flags.writeable = False
            return empty
        if self._gap != self._size:
            self._own(0)
            self._move_gap(self._size)
        group = self._lease() if self._lease is not None else None
        if group is None:
            group = _Group()
            self._lease, self._leased = weakref.ref(group), 0
        self._leased = max(self._leased, self._size)
        return np.asarray(_Lease(self._data, self._base, self._size, group))

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copy of ids[start:stop]."""
        gap, hole = self._gap, len(self._data) - self._size
        if stop <= gap:
            return self._data[start:stop].copy()
        if start >= gap:
            return self._data[start + hole : stop + hole].copy()
        return np.concatenate([self._data[start:gap], self._data[gap + hole : stop + hole]])

    def splice(self, start: int, removed: int, ids: np.ndarray) -> None:
        """Replace ids[start:start+removed]; nothing changes where memory runs out."""
        added = len(ids)
        size = self._size - removed + added
        if size > len(self._data):
            self._grow(size)
        else:
            self._own(start, size)
        spare, self._spare = self._spare, None  # where memory runs out from here on, there is none any more
        if spare is not None:
            self._missed.append((start, removed, ids.copy()))
            self._missing += added + _CHANGE
            self._peak = max(self._peak, size)
            if self._missing > max(_FEW, size >> 3):  # it is out of use, or a copy is as quick
                spare = None
                self._forget_spare()
        self._put(start, removed, ids)
        self._spare = spare

    def _put(self, start: int, removed: int, ids: np.ndarray) -> None:
        """`splice` into an array that is nobody else's and large enough."""
        if self._gap < start:
            self._move_gap(start)
        elif self._gap > start + removed:
            self._move_gap(start + removed)
        # now start <= gap <= start + removed: widen the gap over what is removed
        stop = start + len(ids)
        size, touched = self._size + len(ids) - removed, self.touched + len(ids)
        self._data[start:stop] = ids
        self._gap, self._size, self.touched = stop, size, touched  # no call between these lines: none can fail alone

    def fork(self) -> IdBuffer:
        """A buffer over the same array; whoever writes first takes its own copy."""
        other = self._twin()
        other._lease, other._leased = None, 0
        other._shared = self._shared = True
        self._forget_spare()
        return other

    def _twin(self) -> IdBuffer:
        """A buffer over the same array, without a spare."""
        other = object.__new__(IdBuffer)
        other._data, other._base, other._gap, other._size = self._data, self._base, self._gap, self._size
        other._lease, other._leased, other._shared = self._lease, self._leased, self._shared
        other.touched = other.copies = other.regrown = 0
        other._forget_spare()
        return other

    def _forget_spare(self) -> None:
        self._spare, self._missed, self._missing, self._peak = None, [], 0, 0

    def _is_leased(self) -> bool:
        return self._lease is not None and self._lease() is not None

    def _own(self, start: int, size: int = 0) -> None:
        """Take another array, for `size` ids, where a write at `start` or behind it could be seen by somebody else."""
        # an array that had been larger has room that a plain copy lacks
        if self._shared:
            self._grow(max(self._size, size))
            self.copies += 1
        elif self._leased > start and self._is_leased():
            left = self._twin()
            if not self._turn(size):
                self._grow(max(self._size, size))
                self.copies += 1
            self._spare = left

    def _turn(self, size: int) -> bool:
        """Bring the spare up to date and use it, if it is free and has room for `size` ids."""
        spare = self._spare
        if spare is None or spare._is_leased() or len(spare._data) < max(size, self._peak, self._size):
            return False
        missed = self._missed
        self._forget_spare()  # half brought up to date it is of no use
        for start, removed, ids in missed:
            spare._put(start, removed, ids)
        self.touched += spare.touched
        spare.touched = 0
        self._data, self._base, self._gap = spare._data, spare._base, spare._gap
        self._lease, self._leased = None, 0
        return True

    def _grow(self, size: int) -> None:
        """A fresh, larger array with the gap where it is."""
        data = np.empty(_capacity(size), np.int32)
        behind = self._size - self._gap
        data[: self._gap] = self._data[: self._gap]
        if behind:
            data[len(data) - behind :] = self._data[len(self._data) - behind :]
        self._data, self._base = data, data.ctypes.data
        self._lease, self._leased, self._shared = None, 0, False
        self._forget_spare()
        self.regrown += self._size

    def _move_gap(self, to: int) -> None:
        gap, hole = self._gap, len(self._data) - self._size
        touched = self.touched
        if to != gap and hole:
            data = self._data.data
            if to < gap:
                target, source, count = to + hole, to, gap - to
            else:
                target, source, count = gap, gap + hole, to - gap
            touched += count
            data[target : target + count] = data[source : source + count]  # a memmove, and no call before what follows
        self._gap, self.touched = to, touched


def _capacity(size: int) -> int:
    """An eighth of spare room, so that growing costs a constant per id."""
    return size + (size >> 3) + 64
