"""Who is inside: bounds the requests in a tier, and lets it wait until they have left."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from .errors import QueueFullError, TierClosedError

if TYPE_CHECKING:
    from .counts import Counts


class Gate:
    """At most so many requests at a time, and none once it is shut.

    Attributes:
      inside: requests.
    """

    def __init__(self, most: int, counts: Counts) -> None:
        self.inside = 0
        self._most, self._counts = most, counts
        self._changed = threading.Condition(threading.Lock())
        self._shut = False

    def enter(self) -> None:
        """Let a request in.

        Raises:
          TierClosedError, QueueFullError: as named.
        """
        with self._changed:
            if self._shut:
                raise TierClosedError("the tier is closed: make a new Tier")
            if self.inside < self._most:
                self.inside += 1
                return
        self._counts.add("events", "rejected")
        raise QueueFullError(f"max_queue={self._most} requests are in the tier: send it again later, or allow more")

    def leave(self) -> None:
        """A request was answered or has failed."""
        with self._changed:
            self.inside -= 1
            if self._shut and not self.inside:
                self._changed.notify_all()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def shut(self) -> bool:
        """Let no more in; whether it was open."""
        with self._changed:
            was, self._shut = self._shut, True
            return not was

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nobody is inside; False if that takes longer than so many seconds.  Needs a gate that is shut."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.inside, timeout)
