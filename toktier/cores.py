"""The cores that this process may use, and its threads to use them with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from toktier import routing

A = TypeVar("A")
B = TypeVar("B")

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}  # by process: threads do not survive a fork


def usable() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(f: Callable[[A], B], items: Iterable[A]) -> Iterable[B]:
    """`map` on all cores, in order, for what leaves the interpreter free; in a worker process plain `map`.

    Must not be called from within `f`: the threads would wait for each other.
    """
    count = usable()
    if count == 1 or routing.in_worker():
        return map(f, items)
    with _lock:
        if os.getpid() not in _pools:
            _pools.clear()
            _pools[os.getpid()] = ThreadPoolExecutor(count, thread_name_prefix="toktier")
        pool = _pools[os.getpid()]
    return pool.map(f, items)
