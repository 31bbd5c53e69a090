"""Locks for what is made once in a process, by the first thread that asks."""

from __future__ import annotations

import os
import threading
import weakref


class MakingLock:
    """A reentrant lock for `with`, free in a forked process: the thread that held it is not there to let go."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def attempt(self) -> bool:
        """Take the lock unless another thread has it; `release` has to follow."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Give back what `attempt` took."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


_all: weakref.WeakSet[MakingLock] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_all):
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
