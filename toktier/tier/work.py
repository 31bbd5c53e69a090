"""What a request carries along on its way through the tier: its deadline, and notes for the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING

from .errors import DeadlineError

if TYPE_CHECKING:
    from .workers import Workers


class Work:
    """One request, used by one thread at a time; only `cancel` may be called by another.

    Attributes:
      began: `time.perf_counter()` of the call.  deadline: `time.monotonic()` after which it is refused, or None.
      path, reason: of the answer, once something was tokenized.  scanned: bytes tokenized so far.
      batch: requests in its launch.  queued: seconds waited.
      workers: the pool whose thread runs it, or None where it is the caller's own.
      long: whether that pool took it for a long one.
      withdraw: takes it out of the queue in which it waits, where it waits in one.
    """

    __slots__ = (
        "batch",
        "began",
        "cancelled",
        "deadline",
        "long",
        "path",
        "queued",
        "reason",
        "scanned",
        "withdraw",
        "workers",
    )

    def __init__(self, timeout: float | None = None, workers: Workers | None = None, long: bool = False) -> None:
        self.began = time.perf_counter()
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.path = self.reason = ""
        self.scanned = 0
        self.batch = 1
        self.queued = 0.0
        self.workers, self.long = workers, long
        self.cancelled = False
        self.withdraw: Callable[[], None] | None = None

    def left(self) -> float | None:
        """Seconds until the deadline, None where there is none.

        Raises:
          DeadlineError: it has passed.  CancelledError: nobody wants the answer any more.
        """
        if self.cancelled:
            raise CancelledError
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise late()
        return left

    def seconds(self) -> float:
        """Since the call."""
        return time.perf_counter() - self.began

    def note(self, path: str, reason: str, scanned: int) -> None:
        """Some text was tokenized."""
        self.path, self.reason = path, reason
        self.scanned += scanned

    def cancel(self) -> None:
        """Give it up where it still waits; what runs is finished."""
        self.cancelled = True
        withdraw = self.withdraw
        if withdraw is not None:
            withdraw()


class _Current(threading.local):
    work: Work | None = None


# A session asks its window engine for tokens without knowing of requests; the thread knows which one it serves.
current = _Current()


def late() -> DeadlineError:
    """The error of a request whose time is over."""
    return DeadlineError("timeout passed before the work was done, and nothing of it was applied: allow more time")
