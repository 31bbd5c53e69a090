"""Sessions over HTTP: a change goes up, a patch comes down.

A client that does not know whether its last change was made (the answer was lost, the service was killed) looks at the
session's `chars`, or sends the change again with `expected_chars`: where it was made already, that is refused with
409, and nothing is made twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Request, Response

from toktier.errors import ToktierError
from toktier.tier import UnknownSessionError

from . import wire
from .docs import described
from .errors import ApiError, of_toktier
from .gate import note
from .schemas import (
    AppendRequest,
    ChangeRequest,
    ChangeResponse,
    Deleted,
    EditRequest,
    SessionState,
    UpdateRequest,
)
from .state import RAW, State, session_name, state, switch, wants_raw

if TYPE_CHECKING:
    from toktier.session import Session
    from toktier.tier import Answer

router = APIRouter(prefix="/sessions/{id}")
_LARGE = 1 << 12  # ids from which on an answer is written in a thread
_BLAMED = ("start", "stop", "special_tokens", "add_special_tokens")  # in the messages of the tier; else the text
_MODEL = {"model": "Name of a served model; left out: the first one."}
_IDS = {**_MODEL, "ids": "true: all ids, too.", "digest": "true: the digest of the ids, too."}


@router.post("/append", **described(AppendRequest, ChangeResponse, raw=True))
async def append(id: str, request: Request) -> Response:
    """Adds text at the end of a session."""
    asked, call = await _asked(id, request, AppendRequest)
    tier, options = state(request).tier, _options(asked)
    return await call(lambda **o: tier.append_async(id, asked.text, **options, **o), lambda n: n + len(asked.text))


@router.post("/update", **described(UpdateRequest, ChangeResponse, raw=True))
async def update(id: str, request: Request) -> Response:
    """Makes a text the session's; only what differs from the old one is tokenized."""
    asked, call = await _asked(id, request, UpdateRequest)
    tier, options = state(request).tier, _options(asked)
    return await call(lambda **o: tier.update_async(id, asked.text, **options, **o), lambda n: len(asked.text))


@router.post("/edit", **described(EditRequest, ChangeResponse, raw=True))
async def edit(id: str, request: Request) -> Response:
    """Replaces the characters [start, stop) of a session's text."""
    asked, call = await _asked(id, request, EditRequest)
    tier = state(request).tier
    return await call(
        lambda **o: tier.edit_async(id, asked.start, asked.stop, asked.text, **o),
        lambda n: n - (asked.stop - asked.start) + len(asked.text),
    )


@router.get("", **described(None, SessionState, raw=True, query=_IDS))
async def show(id: str, request: Request) -> Response:
    """A session's size, and its ids where they are asked for (always in raw form)."""
    service, raw = state(request), wants_raw(request)
    want_ids, want_digest = switch(request, "ids"), switch(request, "digest")
    name = _model(request)
    chars, ids = await service.on_session(service.tier.session_state, session_name(id), name)

    def written() -> Response:
        digest = wire.digest(ids) if want_digest else None
        if raw:
            counts: dict[str, Any] = {"count": len(ids), "length": len(ids), "chars": chars}
            return _raw(ids, {**counts, "digest": digest}, "ids")
        known = {"model": name, "session": id, "length": len(ids), "chars": chars, "digest": digest}
        return _json({**known, "tokens": ids if want_ids else None})

    large = len(ids) > _LARGE and (raw or want_ids or want_digest)
    return await service.off_loop(written) if large else written()


@router.delete("", **described(None, Deleted, query=_MODEL))
async def delete(id: str, request: Request) -> Response:
    """Forgets a session."""
    service, name = state(request), _model(request)
    if not await service.on_session(service.tier.delete, session_name(id), name):
        raise of_toktier(UnknownSessionError())
    return _json({"model": name, "session": id, "deleted": True})


def _options(asked: AppendRequest | UpdateRequest) -> dict[str, Any]:
    how = {"special_tokens": asked.special_tokens, "add_special_tokens": asked.add_special_tokens}
    return {"create": asked.create, **how}


def _model(request: Request) -> str:
    name, _ = state(request).model(request.query_params.get("model"))
    note(request.scope).model = name
    return name


async def _asked(id: str, request: Request, schema: type[Any]) -> tuple[Any, Callable[..., Awaitable[Response]]]:
    """The request, and what makes a change of it an answer."""
    service, raw = state(request), wants_raw(request)
    session_name(id)
    asked = await service.asked(request, schema)
    name, _ = service.model(asked.model)
    note(request.scope).model = name

    async def call(change: Callable[..., Coroutine[Any, Any, Answer]], chars_after: Callable[[int], int]) -> Response:
        before = 0

        def check(session: Session) -> None:
            nonlocal before
            before = session.n_chars
            _expect(asked, session)

        try:
            work = change(tokenizer=name, timeout=service.settings.timeout, check=check)
            answer = await service.unless_gone(request, work)
        except ToktierError as e:
            raise of_toktier(e, next((n for n in _BLAMED if str(e).startswith(f"{n}=")), "text")) from None
        note(request.scope).path = answer.path
        write = _Written(service, asked, answer, chars_after(before), raw)
        return await service.off_loop(write) if write.large else write()

    return asked, call


def _expect(asked: ChangeRequest, session: Session) -> None:
    """Refuses a change whose conditions do not hold."""
    found: dict[str, Any] = {"chars": session.n_chars, "length": len(session)}
    for name, wanted, is_so in (
        ("expected_chars", asked.expected_chars, found["chars"]),
        ("expected_length", asked.expected_length, found["length"]),
        ("if_match", asked.if_match, None if asked.if_match is None else wire.digest(session.ids)),
    ):
        if wanted is not None and wanted != is_so:
            raise ApiError(
                409,
                "conflict",
                f"{name} does not hold: the session is not what the client took it for, and was left as it is; "
                "compare its chars, or GET it with ids=true",
                name,
                **found,
            )


class _Written:
    """The response to a change."""

    def __init__(self, service: State, asked: ChangeRequest, answer: Answer, chars: int, raw: bool) -> None:
        assert answer.patch is not None
        self._asked, self._answer, self._patch, self._chars, self._raw = asked, answer, answer.patch, chars, raw
        sent = len(answer.ids) if asked.return_ids else len(answer.patch.ids)
        self.large = sent > _LARGE or (asked.return_digest and len(answer.ids) > _LARGE)

    def __call__(self) -> Response:
        asked, answer, patch = self._asked, self._answer, self._patch
        digest = wire.digest(answer.ids) if asked.return_digest else None
        known: dict[str, Any] = {"length": len(answer.ids), "chars": self._chars, "digest": digest}
        cost = {"served_bytes": answer.served_bytes, "scanned_bytes": answer.scanned_bytes}
        if self._raw:
            sent: np.ndarray = answer.ids if asked.return_ids else patch.ids
            counts: dict[str, Any] = {
                "count": len(sent),
                "start": patch.start,
                "removed": patch.removed,
                **known,
                **cost,
            }
            counts["path"] = answer.path
            return _raw(sent, counts, "ids" if asked.return_ids else "patch")
        return _json(
            {
                "model": answer.tokenizer,
                "session": answer.session,
                **known,
                "tokens": answer.ids if asked.return_ids else None,
                "patch": {"start": patch.start, "removed": patch.removed, "ids": patch.ids},
                "path": answer.path,
                "reason": answer.reason,
                **cost,
            }
        )


def _json(value: dict[str, Any]) -> Response:
    return Response(wire.dump(value), media_type="application/json")


def _raw(ids: np.ndarray, counts: dict[str, Any], holds: str) -> Response:
    """Ids as bytes, with what belongs to them in headers `X-Toktier-...`."""
    headers = {f"x-toktier-{k.replace('_', '-')}": str(v) for k, v in counts.items() if v is not None}
    return Response(wire.raw(ids), media_type=RAW, headers={**headers, "x-toktier-holds": holds})
