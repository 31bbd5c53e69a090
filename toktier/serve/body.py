"""Bodies of requests: read within limits, then read as JSON of a known shape, or refused by name and place."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError

from . import schemas
from .errors import ApiError
from .settings import Settings

M = TypeVar("M", bound=schemas.Request)
_SHOWN = 8  # faults listed in one answer


async def read(request: Request, settings: Settings) -> bytes:
    """The body.

    Raises:
      ApiError: 413 as soon as it is known to be too large, 408 where it does not come, 415 where it is of a kind that
        is not read.
    """
    headers, limit = request.headers, settings.max_body_bytes
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415, "unsupported_media_type", "send JSON with the header Content-Type: application/json", "Content-Type"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "unsupported_media_type", "send the body as it is, not compressed", "Content-Encoding")
    if int(headers.get("content-length", 0)) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_timeout):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408, "body_timeout", f"the body did not arrive within {settings.body_timeout:g} seconds: send it again"
        ) from None
    return b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        "too_large",
        f"the body is larger than {limit} bytes: send less, grow a session by appends, or start the service with a "
        "larger --max-body",
        limit=limit,
    )


def parse(schema: type[M], body: bytes) -> M:
    """The request in a body.

    Raises:
      ApiError: 400 for what is no UTF-8, no JSON or no Unicode text; 422 for JSON of another shape.  The messages have
        places and names, never the text.
    """
    try:
        return schema.model_validate_json(body)
    except ValidationError as e:
        faults = e.errors(include_url=False, include_context=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        raise _no_json(body, faults[0]["msg"])
    for fault in faults:
        name = str(fault["loc"][0]) if fault["loc"] else ""
        if name in schema.refused:
            raise ApiError(501, "not_supported", schema.refused[name], name)
    listed = [{"argument": _place(f["loc"]), "message": f["msg"]} for f in faults[:_SHOWN]]
    known = ", ".join(schema.model_fields)
    first = listed[0]
    way_out = f"; the fields are {known}" if faults[0]["type"] in ("extra_forbidden", "missing") else ""
    message = f"{first['argument'] or 'the body'}: {first['message']}{way_out}"
    raise ApiError(422, "invalid_request", message, first["argument"], errors=listed)


def _place(location: tuple[int | str, ...]) -> str | None:
    """`tokens[3]` for ("tokens", 3)."""
    place = ""
    for part in location:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return place[:200] or None


def _no_json(body: bytes, message: str) -> ApiError:
    try:
        body.decode()
    except UnicodeDecodeError as e:
        return ApiError(
            400, "invalid_utf8", f"byte {e.start} of the body is not UTF-8: JSON is sent as UTF-8", offset=e.start
        )
    try:
        lone = _lone_surrogate(json.loads(body))
    except (ValueError, RecursionError):
        lone = None
    if lone is not None:
        name, at = lone
        return ApiError(
            400,
            "invalid_unicode",
            f"{name} has a lone surrogate at character {at}: half a character is no text, send both halves together",
            name,
            offset=at,
        )
    return ApiError(400, "invalid_json", f"the body is no JSON: {message.removeprefix('Invalid JSON: ')}")


def _lone_surrogate(value: Any) -> tuple[str, int] | None:
    """Field and character of a lone surrogate among the texts of an object."""
    if isinstance(value, dict):
        for name, text in value.items():
            for what, shown in ((name, "a field's name"), (text, name)):
                if isinstance(what, str):
                    at = next((k for k, c in enumerate(what) if "\ud800" <= c <= "\udfff"), None)
                    if at is not None:
                        return shown, at
    return None
