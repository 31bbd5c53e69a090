"""The threads behind the asynchronous calls: few, so that they do not fight over the interpreter.

A thread that waits for the device counts as away, and another one takes its place meanwhile.  Jobs with the same key
run one after the other in the order they were brought, so two changes of one session never keep two threads busy.
Long jobs take half of the threads at most (or the only one), so short ones do not queue behind them.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from typing import Any

from .errors import TierClosedError

_MOST = 64  # threads, those that wait for the device included


class _Job:
    __slots__ = ("call", "future", "key", "left", "long", "number")

    def __init__(
        self, call: Callable[[], Any], key: Hashable, left: Callable[[], None], long: bool, number: int
    ) -> None:
        self.call, self.key, self.left, self.long, self.number = call, key, left, long, number
        self.future: Future[Any] = Future()


class Workers:
    """A pool of `size` threads, started as they are needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._most_long = max(1, size // 2)
        self._short: collections.deque[_Job] = collections.deque()
        self._long: collections.deque[_Job] = collections.deque()
        self._behind: dict[Hashable, collections.deque[_Job]] = {}  # keys in use, and what waits behind each
        lock = threading.Lock()
        self._changed, self._finished = threading.Condition(lock), threading.Condition(lock)
        self._threads: set[threading.Thread] = set()
        self._idle = self._away = self._unfinished = 0
        self._numbers = itertools.count()
        self._long_running = 0  # those that are away left out
        self._closed = False

    def submit(
        self, call: Callable[[], Any], key: Hashable, left: Callable[[], None], long: bool = False
    ) -> Future[Any]:
        """Have `call` done; a future that is cancelled before its turn never runs.

        Args:
          key: jobs of the same one run one after the other; None for no such bond.
          left: is called when the job leaves the pool, however that comes about.
          long: whether it may take much longer than others.

        Raises:
          TierClosedError: after `close`.
        """
        job = _Job(call, key, left, long, next(self._numbers))
        with self._changed:
            if self._closed:
                raise TierClosedError("the tier is closed: make a new Tier")
            self._unfinished += 1
            if key is not None and key in self._behind:
                self._behind[key].append(job)
            else:
                if key is not None:
                    self._behind[key] = collections.deque()
                self._queue(job).append(job)
                self._wake()
        return job.future

    @property
    def waiting(self) -> int:
        """Jobs that were not begun."""
        with self._changed:
            return len(self._short) + len(self._long) + sum(map(len, self._behind.values()))

    @contextlib.contextmanager
    def blocking(self, long: bool) -> Iterator[None]:
        """For a thread of the pool, while it waits for something other than the interpreter; `long` as its job."""
        with self._changed:
            self._away += 1
            self._long_running -= long
            if self._some():
                self._wake()
        try:
            yield
        finally:
            with self._changed:
                self._away -= 1
                self._long_running += long

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, and finish what was taken; after `timeout` seconds what was not begun is failed."""
        with self._changed:
            self._closed = True
            if self._finished.wait_for(lambda: not self._unfinished, timeout):
                self._wake_all()
                return
            queues = (self._short, self._long, *self._behind.values())
            late = [job for queue in queues for job in queue]
            for queue in queues:
                queue.clear()
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

    def _queue(self, job: _Job) -> collections.deque[_Job]:
        return self._long if job.long else self._short

    def _some(self) -> bool:
        """Is there a job that may begin?"""
        return bool(self._short) or (bool(self._long) and self._long_running < self._most_long)

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
                self._long_running -= job.long
                if job.key is not None:
                    behind = self._behind[job.key]
                    if behind:
                        self._queue(behind[0]).append(behind.popleft())
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
                if self._some():
                    return self._take()
                if self._closed and not self._unfinished:
                    break
                self._idle += 1  # who wakes it takes it off again
                self._changed.wait()
            self._threads.discard(threading.current_thread())
            if self._some():
                self._wake()
            return None

    def _take(self) -> _Job:
        """The job that has waited longest, of those that may begin."""
        may = bool(self._long) and self._long_running < self._most_long
        first = may and (not self._short or self._long[0].number < self._short[0].number)
        job = (self._long if first else self._short).popleft()
        self._long_running += job.long
        return job

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
