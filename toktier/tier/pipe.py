"""Messages over a pair of pipes, as the verifier and its worker process exchange them.

A message is a JSON object and any number of bodies.  On the wire each of its parts is a row of chunks, each with its
length in front (uint32, little-endian), closed by an empty chunk; the object comes first and names the number of
bodies.  A body can be written while it is still being made, so no copy of a long text is held for it.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LENGTH = struct.Struct("<I")
_MOST = 1 << 18  # bytes of a chunk
_END = _LENGTH.pack(0)

Body = Iterable[bytes | memoryview]


class PipeClosed(Exception):
    """The other side is gone."""


class PipeTimeout(Exception):
    """The other side does not read or write."""


class Pipe:
    """Both directions, without blocking for longer than asked.

    Args:
      source, target: descriptors to read from and to write to; made non-blocking, and closed by `close`.
      watch: is called about every `interval` seconds while waiting; may raise.
    """

    def __init__(
        self, source: int, target: int, watch: Callable[[], None] = lambda: None, interval: float = 5.0
    ) -> None:
        self._source, self._target = source, target
        self._watch, self._interval = watch, interval
        self._open = True
        for descriptor in (source, target):
            os.set_blocking(descriptor, False)

    def send(self, head: dict[str, Any], bodies: Iterable[Body] = (), seconds: float | None = None) -> None:
        """Write a message.

        Raises:
          PipeClosed, PipeTimeout: as named; a message of which a part was written is lost with the pipe.
        """
        end = None if seconds is None else time.monotonic() + seconds
        bodies = list(bodies)
        for body in [[json.dumps([head, len(bodies)]).encode()], *bodies]:
            for chunk in body:
                for part in _parts(memoryview(chunk).cast("B")):
                    self._write([_LENGTH.pack(len(part)), part], end)
            self._write([_END], end)

    def receive(self, seconds: float | None = None) -> tuple[dict[str, Any], list[bytes]]:
        """Read a message.

        Raises:
          PipeClosed, PipeTimeout: as named.
        """
        end = None if seconds is None else time.monotonic() + seconds
        head, count = json.loads(self._body(end))
        return head, [self._body(end) for _ in range(count)]

    def close(self) -> None:
        """Close both descriptors."""
        if self._open:
            self._open = False
            os.close(self._source)
            os.close(self._target)

    def _body(self, end: float | None) -> bytes:
        chunks = []
        while length := _LENGTH.unpack(self._read(_LENGTH.size, end))[0]:
            chunks.append(self._read(length, end))
        return b"".join(chunks)

    def _read(self, count: int, end: float | None) -> bytes:
        parts = []
        while count:
            try:
                part = os.read(self._source, count)
            except BlockingIOError:
                self._wait(self._source, select.POLLIN, end)
                continue
            if not part:
                raise PipeClosed
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _write(self, parts: list[bytes | memoryview], end: float | None) -> None:
        views = [memoryview(part) for part in parts]
        while views:
            try:
                written = os.writev(self._target, views)
            except BlockingIOError:
                self._wait(self._target, select.POLLOUT, end)
                continue
            except BrokenPipeError:
                raise PipeClosed from None
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]

    def _wait(self, descriptor: int, event: int, end: float | None) -> None:
        self._watch()
        left = self._interval if end is None else min(self._interval, end - time.monotonic())
        if left <= 0:
            raise PipeTimeout
        poll = select.poll()
        poll.register(descriptor, event)
        poll.poll(left * 1000)


def _parts(view: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(view), _MOST):
        yield view[at : at + _MOST]
