"""Long texts teach the host engine their words, so that the changes to come find most of them known.

`Session` does that itself, before it answers.  Here the answer goes out first, and one thread learns a little at a time
with pauses between, since learning is plain Python and would keep other requests from the interpreter.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from .. import chunks
from ..encoded import Encoded

if TYPE_CHECKING:
    from ..core import Core
    from .pace import Pace

log = logging.getLogger(__name__)
_TAIL = 1 << 18  # bytes at the end of a text
_PART = 1 << 12  # bytes learned at a time
_REST = 3.0  # pause, in times of what the last part took
_TEXTS = 8  # that may wait; an older one is dropped for a new one


class Learner:
    """One thread, started by the first text."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._waiting: collections.deque[tuple[Core, np.ndarray, Encoded]] = collections.deque(maxlen=_TEXTS)
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = False
        self._busy = False

    def offer(self, core: Core, buffer: np.ndarray, encoded: Encoded) -> None:
        """Learn from the end of a buffer (uint8[n]) and its tokens when there is time."""
        start = max(0, len(buffer) - _TAIL)
        first = int(np.searchsorted(encoded.ends, start, "right"))
        known = Encoded(encoded.ids[first:].copy(), encoded.ends[first:] - start)
        with self._changed:
            if self._closed:
                return
            self._waiting.append((core, buffer[start:].copy(), known))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toktier-learner", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def prepare(self, core: Core) -> None:
        """Have the host engine make what the first lesson needs, which takes it half a second."""
        core.host.learn(b"", Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64)))

    def wait(self) -> None:
        """Wait until everything offered is learned."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._waiting or self._busy))

    def close(self) -> None:
        """Drop what waits, and end."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or bool(self._waiting))
                if self._closed:
                    return
                core, buffer, encoded = self._waiting.pop()  # the newest: its session changes next
                self._busy = True
            try:
                self._learn(core, buffer, encoded)
            except Exception:  # a lesson changes no answer, and the next one may go well
                log.exception("a text could not be learned from")

    def _learn(self, core: Core, buffer: np.ndarray, encoded: Encoded) -> None:
        for start, stop in chunks.plan(core.tables.pretok, buffer, _PART):
            if self._closed:
                break
            began = time.perf_counter()
            a, b = np.searchsorted(encoded.ends, [start, stop], "right")
            core.host.learn(buffer[start:stop].tobytes(), Encoded(encoded.ids[a:b], encoded.ends[a:b] - start))
            took = time.perf_counter() - began
            self._pace.give_way(took)
            rest = _REST * took
            with self._changed:
                self._changed.wait_for(lambda: self._closed, rest)
