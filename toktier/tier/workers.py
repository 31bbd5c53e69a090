"""The threads behind the asynchronous calls: few, so that they do not fight over the interpreter.

A thread that waits for the device counts as away, and another one takes its place meanwhile.  Jobs with the same key
run one after the other in the order they were brought, so two changes of one session never keep two threads busy.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from typing import Any

from .errors import TierClosedError

_MOST = 64  # threads, those that wait for the device included


class _Job:
    __slots__ = ("call", "future", "key", "left")

    def __init__(self, call: Callable[[], Any], key: Hashable, left: Callable[[], None]) -> None:
        self.call, self.key, self.left = call, key, left
        self.future: Future[Any] = Future()


class Workers:
    """A pool of `size` threads, started as they are needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ready: collections.deque[_Job] = collections.deque()
        self._behind: dict[Hashable, collections.deque[_Job]] = {}  # keys in use, and what waits behind each
        lock = threading.Lock()
        self._changed, self._finished = threading.Condition(lock), threading.Condition(lock)
        self._threads: set[threading.Thread] = set()
        self._idle = self._away = self._unfinished = 0
        self._closed = False

    def submit(self, call: Callable[[], Any], key: Hashable, left: Callable[[], None]) -> Future[Any]:
        """Have `call` done; a future that is cancelled before its turn never runs.

        Args:
          key: jobs of the same one run one after the other; None for no such bond.
          left: is called when the job leaves the pool, however that comes about.

        Raises:
          TierClosedError: after `close`.
        """
        job = _Job(call, key, left)
        with self._changed:
            if self._closed:
                raise TierClosedError("the tier is closed: make a new Tier")
            self._unfinished += 1
            if key is not None and key in self._behind:
                self._behind[key].append(job)
            else:
                if key is not None:
                    self._behind[key] = collections.deque()
                self._ready.append(job)
                self._wake()
        return job.future

    @property
    def waiting(self) -> int:
        """Jobs that were not begun."""
        with self._changed:
            return len(self._ready) + sum(map(len, self._behind.values()))

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """For a thread of the pool, while it waits for something other than the interpreter."""
        with self._changed:
            self._away += 1
            if self._ready:
                self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._away -= 1

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, and finish what was taken; after `timeout` seconds what was not begun is failed."""
        with self._changed:
            self._closed = True
            if self._finished.wait_for(lambda: not self._unfinished, timeout):
                self._wake_all()
                return
            late = [*self._ready, *(job for jobs in self._behind.values() for job in jobs)]
            self._ready.clear()
            for jobs in self._behind.values():
                jobs.clear()
        for job in late:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(TierClosedError("the tier was closed before the request was served"))
            job.left()
        with self._changed:
            self._unfinished -= len(late)
            self._wake_all()

    def join(self) -> None:
        """Wait for the threads to end, after `close`."""
        with self._changed:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Somebody shall look at what is ready; the lock is held."""
        if self._idle:
            self._idle -= 1
            self._changed.notify()
        elif len(self._threads) - self._away < self._size and len(self._threads) < _MOST:
            thread = threading.Thread(target=self._run, name=f"toktier-worker-{len(self._threads)}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _wake_all(self) -> None:
        self._idle = 0
        self._changed.notify_all()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._serve(job)
            job.left()
            with self._changed:
                self._unfinished -= 1
                if job.key is not None:
                    behind = self._behind[job.key]
                    if behind:
                        self._ready.append(behind.popleft())
                    else:
                        del self._behind[job.key]
                if self._closed and not self._unfinished:
                    self._finished.notify_all()
                    self._wake_all()
            del job

    def _next(self) -> _Job | None:
        with self._changed:
            while True:
                if len(self._threads) - self._away > self._size:
                    break  # one that was away is back
                if self._ready:
                    return self._ready.popleft()
                if self._closed and not self._unfinished:
                    break
                self._idle += 1  # who wakes it takes it off again
                self._changed.wait()
            self._threads.discard(threading.current_thread())
            if self._ready:
                self._wake()
            return None

    def _serve(self, job: _Job) -> None:
        future = job.future
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = job.call()
        except BaseException as e:
            future.set_exception(e)
        else:
            future.set_result(result)
