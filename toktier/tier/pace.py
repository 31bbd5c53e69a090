"""Long work on the host gives way to short requests.

All threads share one interpreter, and each of those that want it gets it in turn.  A continuation of half a
millisecond would so take as long as two or three of its neighbours.  Long work therefore stops between its parts while
short requests are inside, for as long at most as its last part took: it gets half of the time or more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_NAP = 0.0002  # seconds


class Pace:
    """Who is inside and at work, and how much of it is long.

    Args:
      inside: how many requests are in the tier.  waiting: how many of them wait for the device or for a thread.
    """

    def __init__(self, inside: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._inside, self._waiting = inside, waiting
        self._lock = threading.Lock()
        self._long = 0

    def __enter__(self) -> Pace:
        """A request that is long begins."""
        with self._lock:
            self._long += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._long -= 1

    def give_way(self, took: float) -> None:
        """Stop while there are short requests, for at most so many seconds."""
        end = time.perf_counter() + took
        while self._inside() > self._waiting() + self._long and time.perf_counter() < end:
            time.sleep(_NAP)
