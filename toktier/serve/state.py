"""What the endpoints share: the tier, the settings, and threads for what would hold up the event loop."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from . import body, schemas
from .errors import ApiError
from .metrics import Metrics
from .settings import Settings

if TYPE_CHECKING:
    from toktier.tier import Tier
    from toktier.tokenizer import Tokenizer

T = TypeVar("T")
M = TypeVar("M", bound=schemas.Request)
RAW = "application/octet-stream"
_NAME = re.compile(r"[A-Za-z0-9._~:@+=-]{1,200}")
_INLINE = 1 << 16  # bytes of a body that are parsed on the event loop; larger ones in a thread


class State:
    """The running service; arguments as for `create_app`."""

    def __init__(self, tier: Tier, settings: Settings) -> None:
        self.tier, self.settings = tier, settings
        self.metrics = Metrics(tier)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="toktier-serve")
        self._waiting = ThreadPoolExecutor(16, thread_name_prefix="toktier-serve-waiting")

    async def off_loop(self, call: Callable[..., T], *args: Any) -> T:
        """What `call` returns, run in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    async def on_session(self, call: Callable[..., T], id: str, model: str) -> T:
        """What a call of the tier returns that may wait for a session: in threads beside those that work."""
        done = functools.partial(call, id, model, timeout=self.settings.timeout)
        return await asyncio.get_running_loop().run_in_executor(self._waiting, done)

    async def unless_gone(self, request: Request, call: Coroutine[Any, Any, T]) -> T:
        """What `call` returns; it is cancelled when the client goes away, so that nobody's request holds up others.

        Raises:
          ClientDisconnect: the client went away.
        """
        work = asyncio.ensure_future(call)
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise ClientDisconnect
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def asked(self, request: Request, schema: type[M]) -> M:
        """The request in a body; errors as `body.read` and `body.parse`."""
        content = await body.read(request, self.settings)
        if len(content) <= _INLINE:
            return body.parse(schema, content)
        return await self.off_loop(body.parse, schema, content)

    def model(self, name: str | None) -> tuple[str, Tokenizer]:
        """Name and tokenizer of the model that a request names; the first one where it names none.

        Raises:
          ApiError: 404, no such model is served.
        """
        served = self.tier.tokenizers
        found = next(iter(served)) if name is None else name
        if found not in served:
            raise ApiError(404, "unknown_model", f"no such model here; there are {', '.join(served)}", "model")
        return found, served[found]

    async def close(self) -> None:
        """Finishes what runs and closes the tier."""
        await asyncio.to_thread(self.tier.close)
        self._threads.shutdown()
        self._waiting.shutdown()


async def _gone(request: Request) -> None:
    """Returns when the client has gone away; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def state(request: Request) -> State:
    """The service that a request came to."""
    return request.app.state.toktier  # type: ignore[no-any-return]


def session_name(name: str) -> str:
    """A session's name, from the path.

    Raises:
      ApiError: 422, a name with characters that an address cannot hold without doubt.
    """
    if not _NAME.fullmatch(name):
        raise ApiError(
            422,
            "invalid_session_name",
            "a session's name is 1 to 200 characters out of A-Z a-z 0-9 . _ ~ : @ + = -",
            "id",
        )
    return name


def wants_raw(request: Request) -> bool:
    """Whether ids are to come as bytes: by the parameter `format`, else by the Accept header."""
    chosen = request.query_params.get("format")
    if chosen is None:
        accepted = request.headers.get("accept", "").lower()
        return RAW in [part.partition(";")[0].strip() for part in accepted.split(",")]
    if chosen not in ("json", "raw"):
        raise ApiError(422, "invalid_request", "format must be json or raw", "format")
    return chosen == "raw"


def switch(request: Request, name: str) -> bool:
    """A parameter of the address that is true or false; false where it is left out."""
    chosen = request.query_params.get(name, "false")
    if chosen not in ("true", "false"):
        raise ApiError(422, "invalid_request", f"{name} must be true or false", name)
    return chosen == "true"
