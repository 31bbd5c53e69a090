"""The cores that this process may use, and its threads to use them with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from toktier import routing
from toktier.locks import MakingLock

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

A = TypeVar("A")
B = TypeVar("B")

_lock = MakingLock()
_pools: list[ThreadPoolExecutor] = []  # of this process: one, once it was needed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


def usable() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(f: Callable[[A], B], items: Iterable[A]) -> Iterable[B]:
    """`map` on all cores, in order, for what leaves the interpreter free; plain `map` where there are no threads.

    That is so in a worker process, where the system gives none, and once the main thread has ended.  Must not be
    called from within `f`: the threads would wait for each other.
    """
    count = usable()
    if count == 1 or routing.in_worker():
        return map(f, items)
    items = list(items)
    try:
        return _threads(count).map(f, items)
    except RuntimeError:  # from starting threads, since `f` runs in them
        return map(f, items)


def _threads(count: int) -> ThreadPoolExecutor:
    """The threads of this process.

    Raises:
      RuntimeError: the interpreter is about to end.
    """
    with _lock:
        if not _pools:
            from concurrent.futures import ThreadPoolExecutor

            _pools.append(ThreadPoolExecutor(count, thread_name_prefix="toktier"))
        return _pools[0]
