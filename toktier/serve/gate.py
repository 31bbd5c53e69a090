"""What every request passes, before and behind its endpoint: identity, permission, limits, counting, and one log line.

Nothing that a client sent is logged but a request id and the name of a known model: no text, no session name, no
path, no header.  Of an unforeseen error the log has its class and the lines it passed, not its message.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
import uuid
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toktier.errors import ToktierError

from . import auth
from .errors import INTERNAL, ApiError, of_toktier
from .logs import where
from .metrics import Metrics
from .settings import Settings

log = logging.getLogger("toktier.serve")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_OPEN = frozenset({"/healthz"})  # without a token
_UNCOUNTED = frozenset({"/healthz", "/metrics"})  # answered however busy the service is
_PAGES = frozenset({"/docs", "/redoc", "/openapi.json"})
_LINGER_BYTES, _LINGER_SECONDS = 1 << 18, 0.5
GONE = 499  # in log and metrics: the client went away


@dataclasses.dataclass
class Note:
    """What is known of a request, for its log line and the metrics."""

    id: str
    model: str = "-"
    path: str = "-"
    error: str = "-"
    received: int = 0
    sent: int = 0
    status: int = 0


def note(scope: Scope) -> Note:
    """The note of a request."""
    return scope["toktier"]  # type: ignore[no-any-return]


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._active = self._pending = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = _first(scope)
        given = headers.get(b"x-request-id", b"")
        noted = scope["toktier"] = Note(
            given.decode() if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex,
        )
        exchange = _Exchange(self, noted, headers, receive, send)
        counted = scope["path"] not in _UNCOUNTED
        self._active += counted
        try:
            with self._metrics.in_flight.track_inprogress():
                await self._answered(scope, headers, exchange, counted)
        finally:
            self._active -= counted
            self._pending -= exchange.held
            page = scope["path"] if scope["path"] in _PAGES else "unmatched"
            route = str(getattr(scope.get("route"), "path", page))
            seconds = time.perf_counter() - began
            self._metrics.observe(route, noted, seconds)
            if self._settings.access_log:
                log.info(
                    "request id=%s method=%s route=%s model=%s status=%d error=%s path=%s in=%d out=%d ms=%.2f",
                    *(noted.id, _method(scope), route, noted.model, noted.status, noted.error, noted.path),
                    *(noted.received, noted.sent, seconds * 1000),
                )

    async def _answered(self, scope: Scope, headers: dict[bytes, bytes], exchange: _Exchange, counted: bool) -> None:
        noted = exchange.note
        try:
            self._check(scope["path"], headers, counted)
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            noted.status, noted.error = GONE, "client_gone"
        except ApiError as e:
            await exchange.fail(e)
        except ToktierError as e:
            await exchange.fail(of_toktier(e))
        except MemoryError:
            await exchange.fail(
                ApiError(503, "out_of_memory", "the machine has no memory for this request now: send it later")
            )
        except Exception as e:  # the last resort
            await exchange.fail(ApiError(500, "internal", INTERNAL, cause=e))

    def _check(self, path: str, headers: dict[bytes, bytes], counted: bool) -> None:
        """Raises ApiError where a request may not pass."""
        settings, name = self._settings, auth.host_name(headers.get(b"host", b""))
        if settings.hosts is not None and name not in settings.hosts and path not in _OPEN:
            raise ApiError(421, "unknown_host", f"this service is not called {name[:80]!r}: see --allowed-host", "Host")
        open_to_all = settings.token is None or path in _OPEN
        if not open_to_all and not auth.allowed(headers.get(b"authorization"), settings.token or ""):
            raise ApiError(
                401,
                "unauthorized",
                "send the service's token in the header Authorization: Bearer TOKEN",
                "Authorization",
                headers={"www-authenticate": 'Bearer realm="toktier"'},
            )
        if counted and self._active > settings.max_concurrent:
            raise self._busy(f"{settings.max_concurrent} requests are worked on already")

    def hold(self, size: int) -> None:
        """Counts bytes of a body that came in."""
        if self._pending + size > self._settings.max_pending_bytes:
            raise self._busy(f"bodies of {self._settings.max_pending_bytes} bytes are held already")
        self._pending += size

    @staticmethod
    def _busy(why: str) -> ApiError:
        return ApiError(503, "overloaded", f"{why}: send it again later", headers={"retry-after": "1"})


class _Exchange:
    """The two directions of one request."""

    def __init__(self, gate: Gate, noted: Note, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        self._gate, self.note, self._receive, self._send = gate, noted, receive, send
        self._whole = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
        self._waits = headers.get(b"expect", b"").lower() == b"100-continue"
        self._closing = False
        self.held = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._waits = False
            self._whole = not message.get("more_body", False)
            self.note.received += size
            self._gate.hold(size)
            self.held += size
        return message

    async def send(self, message: Message) -> None:
        """Passes a part of the response on.

        Where the client has not sent all of its body yet, the connection ends with the response: the rest is not read.
        But a connection that is closed with unread data in it is reset, and the client may lose the response with it,
        so a little is read and thrown away first.
        """
        last = False
        if message["type"] == "http.response.start":
            self.note.status = message["status"]
            extra = [(b"x-request-id", self.note.id.encode())]
            if not self._whole:
                self._closing = True
                extra.append((b"connection", b"close"))
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        elif message["type"] == "http.response.body":
            self.note.sent += len(message.get("body", b""))
            last = self._closing and not message.get("more_body", False)
            if last:
                message = {**message, "more_body": True}
        try:
            async with asyncio.timeout(self._gate._settings.send_timeout):
                await self._send(message)
        except TimeoutError:
            raise ClientDisconnect from None
        if last:
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _linger(self) -> None:
        if self._waits:  # it waits for leave to send its body, and does not get it
            return
        size = 0
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while size < _LINGER_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return
        except TimeoutError:
            pass

    async def fail(self, error: ApiError) -> None:
        """Answers with an error, if no answer has begun."""
        self.note.error = error.type
        if error.cause is not None:
            log.error("request id=%s failed: %s", self.note.id, where(error.cause))
        if self.note.status:  # an answer has begun: it stays unfinished, and the server closes the connection
            return
        body = error.body(self.note.id)
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        encoded = [(k.encode(), v.encode()) for k, v in headers.items()]
        try:
            await self.send({"type": "http.response.start", "status": error.status, "headers": encoded})
            await self.send({"type": "http.response.body", "body": body})
        except ClientDisconnect:
            self.note.status = GONE


def _first(scope: Scope) -> dict[bytes, bytes]:
    """Headers by name; of a repeated one the first."""
    return dict(reversed(scope["headers"]))


def _method(scope: Scope) -> Any:
    return scope["method"] if scope["method"] in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH") else "?"
