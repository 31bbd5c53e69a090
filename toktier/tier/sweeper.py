"""Sessions whose time is over are forgotten in a thread of their own, so that no request does it.

A store does a little of it with each of its calls while it is due (`SessionStore.sweep`).  Here it is done before that,
in stores that nobody calls any more as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import SessionError

if TYPE_CHECKING:
    from ..session import SessionStore
    from .pace import Pace
    from .sessions import Sessions

log = logging.getLogger(__name__)
_SWEEPS = 8  # in the time of `ttl`: twice as often as a store takes it to be due


class Sweeper:
    """One thread, started by the first session.

    Args:
      sessions: of all lanes.
      ttl: theirs, in seconds; None for no thread at all.
      pace: gives way to requests.
    """

    def __init__(self, sessions: Sequence[Sessions], ttl: float | None, pace: Pace) -> None:
        self._sessions, self._ttl, self._pace = sessions, ttl, pace
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        """There are sessions from now on; costs nothing once it runs."""
        if self._thread is not None or self._ttl is None:
            return
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="toktier-sweeper", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End, after the step that is being done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._ttl is not None
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, self._ttl / _SWEEPS):
                    return
            for sessions in self._sessions:
                for store in sessions.stores:
                    self._sweep(store)
                sessions.forget_moves()

    def _sweep(self, store: SessionStore) -> None:
        try:
            done = False
            while not (done or self._closed):
                began = time.perf_counter()
                done = store._sweep_some()
                self._pace.give_way(time.perf_counter() - began)
        except SessionError as e:  # the file cannot be read or written now; the next round tries again
            log.warning("sessions were not swept: %s", e)
