"""Launches of the device program: waiting texts of one tokenizer are joined into one, in the order they came.

A text is prepared (checked, normalized, its added tokens cut out) by the thread that brings it, so what is wrong with
it fails there and nowhere else; only its buffer comes here.  Buffers are joined with the boundary byte 0xFF between
them, which is the end of a text to every step of an engine, and the tokens are handed back by their place.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..encoded import Encoded
from ..errors import EngineError
from .errors import TierClosedError
from .work import Work, late

if TYPE_CHECKING:
    from .counts import Counts

_LONGEST_PAUSE = 60.0  # seconds


class Device(Protocol):
    """What is asked of a device engine."""

    def encode_buffer(self, buffer: np.ndarray, compiling: bool) -> Encoded:
        """Tokens of a buffer; EngineError where it would have to compile a program and may not."""
        ...


class _Item:
    """One buffer.  `done` is set once there is one of `encoded`, `spilled` (why the host must do it) and `error`."""

    __slots__ = ("began", "buffer", "came", "device", "done", "encoded", "error", "shared", "spilled")

    def __init__(self, device: Device, buffer: np.ndarray) -> None:
        self.device, self.buffer = device, buffer
        self.came = self.began = time.monotonic()  # began: its launch
        self.done = threading.Event()
        self.encoded: Encoded | None = None
        self.spilled = ""
        self.error: BaseException | None = None
        self.shared = 1


class Launcher:
    """The one thread that launches; started by the first text.

    Args:
      counts: where launches and spills are counted.
      inside: how many requests are in the tier.
      max_wait: seconds a text waits for company, while there are requests that could be.
      max_batch_bytes: of a launch; a longer text is launched alone.
      max_waiting_bytes: waiting for the device; what would exceed it is left to the host.
      pause: seconds before a device that ran out of memory, or failed otherwise, is tried again; doubled each time it
        fails again, up to a minute.
    """

    def __init__(
        self,
        counts: Counts,
        inside: Callable[[], int],
        max_wait: float,
        max_batch_bytes: int,
        max_waiting_bytes: int,
        pause: float,
    ) -> None:
        self._counts, self._inside = counts, inside
        self._max_wait, self._max_bytes, self._max_waiting = max_wait, max_batch_bytes, max_waiting_bytes
        self._shortest_pause = self._pause = pause
        self._resume = 0.0  # monotonic seconds from which on the device is tried again
        self._why = ""
        self._queue: collections.deque[_Item] = collections.deque()
        self._waiting = 0  # bytes
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._closed = False

    def encode(self, device: Device, buffer: np.ndarray, work: Work, join: bool = False) -> Encoded | str:
        """The tokens of a buffer, or why the host must find them.

        Args:
          join: only if texts of this tokenizer wait for a launch already; else "" is returned.

        Raises:
          DeadlineError, CancelledError: of the request; if its launch runs already, nobody waits for the result.
          TierClosedError: the launcher was closed before the launch.
        """
        item = _Item(device, buffer)
        with self._changed:
            if self._closed:
                raise TierClosedError("the tier is closed: make a new Tier")
            if join and not any(other.device is device for other in self._queue):
                return ""
            if why := self._refused(len(buffer)):
                return why
            self._queue.append(item)
            self._waiting += len(buffer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toktier-launcher", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        work.withdraw = lambda: self._withdraw(item)
        try:
            with contextlib.nullcontext() if work.workers is None else work.workers.blocking(work.long):
                if not item.done.wait(work.left()):
                    raise late()
        except BaseException:
            self._withdraw(item)
            raise
        finally:
            work.withdraw = None
        work.queued += item.began - item.came
        if item.error is not None:
            raise item.error
        if item.encoded is None:
            return item.spilled
        work.batch = item.shared
        return item.encoded

    def paused(self) -> float:
        """Seconds until the device is tried again, 0 where nothing is wrong with it."""
        return max(0.0, self._resume - time.monotonic())

    @property
    def waiting(self) -> int:
        """Texts that wait for a launch."""
        return len(self._queue)

    def close(self, finish: bool = True) -> None:
        """Launch what waits (or fail it with TierClosedError), then end."""
        with self._changed:
            self._closed = True
            if not finish:
                for item in self._queue:
                    item.error = TierClosedError("the tier was closed before the request was served")
                    item.done.set()
                self._queue.clear()
                self._waiting = 0
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _refused(self, size: int) -> str:
        """Why the device does not take so many bytes now, or ""."""
        left = self.paused()
        if left:
            self._counts.add("spills", "paused")
            return f"spilled to the host: {self._why}, and is tried again in {left:.1f} s"
        if self._queue and self._waiting + size > self._max_waiting:
            self._counts.add("spills", "backpressure")
            return f"spilled to the host: {self._waiting} bytes wait for the device already"
        return ""

    def _withdraw(self, item: _Item) -> None:
        with self._changed:
            if item in self._queue:
                self._queue.remove(item)
                self._waiting -= len(item.buffer)
                item.error = CancelledError()
                item.done.set()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                self._gather()
                items = self._take()
            if items:
                self._launch(items)

    def _gather(self) -> None:
        """Wait until the oldest text has waited long enough, a launch is full, or all who are in the tier wait."""
        while self._queue and not self._closed and self._inside() > len(self._queue):
            first = self._queue[0]
            left = first.came + self._max_wait - time.monotonic()
            if left <= 0 or sum(len(i.buffer) + 1 for i in self._queue if i.device is first.device) >= self._max_bytes:
                return
            self._changed.wait(left)

    def _take(self) -> list[_Item]:
        """The oldest text, and those behind it that fit into its launch."""
        items: list[_Item] = []
        others: list[_Item] = []
        size = 0
        for item in self._queue:
            fits = not items or size + len(item.buffer) <= self._max_bytes
            if (items and item.device is not items[0].device) or not fits:
                others.append(item)
                size = size if fits or item.device is not items[0].device else self._max_bytes  # none may overtake it
            else:
                items.append(item)
                size += len(item.buffer) + 1
        self._queue = collections.deque(others)
        self._waiting = sum(len(item.buffer) for item in others)
        return items

    def _launch(self, items: list[_Item]) -> None:
        began = time.monotonic()
        for item in items:
            item.began = began
        try:
            results = _apart(items[0].device.encode_buffer(_joined(items), False), items)
        except BaseException as e:
            self._failed(items, e)
            return
        self._pause = self._shortest_pause
        self._counts.launched(len(items))
        for item, encoded in zip(items, results, strict=True):
            item.encoded, item.shared = encoded, len(items)
            item.done.set()

    def _failed(self, items: Sequence[_Item], error: BaseException) -> None:
        """The host takes over where the device failed; what is wrong with one text is told to its caller alone."""
        why = _device_failure(error)
        if not why and len(items) > 1:
            for item in items:
                self._launch([item])
            return
        if why:
            self._why = why
            self._resume = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            self._counts.add("spills", "memory" if why == _MEMORY else "failure", len(items))
        elif isinstance(error, EngineError):  # no program is compiled for it, or this process was forked
            why = str(error)
            self._counts.add("spills", "refused")
        for item in items:
            item.spilled = f"spilled to the host: {why}" if why else ""
            item.error = None if why else error
            item.done.set()


_MEMORY = "the device ran out of memory"


def _device_failure(error: BaseException) -> str:
    """What is wrong with the device, or "" where something else is."""
    import jax

    if isinstance(error, MemoryError):
        return _MEMORY
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return ""
    message = str(error)
    if "RESOURCE_EXHAUSTED" in message or "out of memory" in message.lower():
        return _MEMORY
    return f"the device failed ({message.splitlines()[0][:200]})"


def _joined(items: Sequence[_Item]) -> np.ndarray:
    """uint8: the buffers with one boundary between each two."""
    if len(items) == 1:
        return items[0].buffer
    joined = np.full(sum(len(item.buffer) + 1 for item in items) - 1, 0xFF, np.uint8)
    at = 0
    for item in items:
        joined[at : at + len(item.buffer)] = item.buffer
        at += len(item.buffer) + 1
    return joined


def _apart(encoded: Encoded, items: Sequence[_Item]) -> list[Encoded]:
    """The tokens of each buffer."""
    if len(items) == 1:
        return [encoded]
    starts = np.cumsum([0, *(len(item.buffer) + 1 for item in items)])
    tokens = np.searchsorted(encoded.ends, starts, "right")
    return [
        Encoded(encoded.ids[a:b].copy(), encoded.ends[a:b] - start)
        for a, b, start in zip(tokens[:-1], tokens[1:], starts[:-1], strict=True)
    ]
