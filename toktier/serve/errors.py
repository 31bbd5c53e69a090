"""Errors as the client sees them: `{"error": {"type", "message", "argument", ...}}`, for every status from 400 on."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from toktier.errors import (
    EngineError,
    InputError,
    InputTypeError,
    RecordError,
    SessionClosedError,
    SessionError,
    SpecialTokenError,
    ToktierError,
)
from toktier.tier import errors as tier_errors


class ApiError(Exception):
    """An answer that is an error.

    Args:
      status: of HTTP.  type: a word that programs compare.  message: for people; says the way out.
      argument: the field, parameter or header that is to blame, or None.
      details: further fields of the error object.  headers: of the response.
      cause: what the service is to blame for; the log says where it was.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        argument: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        cause: BaseException | None = None,
        **details: Any,
    ) -> None:
        super().__init__(type)  # no message: nothing of a request may reach a log by way of a traceback
        self.status, self.type, self.message, self.argument = status, type, message, argument
        self.headers, self.details, self.cause = headers or {}, details, cause

    def body(self, request_id: str) -> bytes:
        """The response body."""
        error = {"type": self.type, "message": self.message, "argument": self.argument, "status": self.status}
        return json.dumps({"error": {**error, **self.details, "request_id": request_id}}).encode()


INTERNAL = "the service failed; its log has the request id"
_RETRY = {"retry-after": "1"}
_MESSAGES = {
    "unknown_session": "there is no session of this name: it was never made, was deleted, or its time is over; "
    "make it with create=true and its whole text"
}
_ARGUMENTS = {"unknown_model": "model", "unknown_session": "id"}
# by class, the more special first: status, type, headers
_OF_TOKTIER: tuple[tuple[type[ToktierError], int, str, dict[str, str]], ...] = (
    (tier_errors.UnknownTokenizerError, 404, "unknown_model", {}),
    (tier_errors.UnknownSessionError, 404, "unknown_session", {}),
    (tier_errors.QueueFullError, 503, "overloaded", _RETRY),
    (tier_errors.TierClosedError, 503, "shutting_down", _RETRY),
    (tier_errors.DeadlineError, 504, "timeout", {}),
    (SpecialTokenError, 400, "special_token", {}),
    (SessionClosedError, 409, "session_gone", _RETRY),
    (RecordError, 409, "session_damaged", {}),
    (SessionError, 409, "session_changed", _RETRY),
    (InputError, 400, "invalid_input", {}),
    (InputTypeError, 400, "invalid_input", {}),
    (EngineError, 500, "engine_error", {}),
)


def of_toktier(error: ToktierError, argument: str | None = None) -> ApiError:
    """What a client is told of an error of the library; `argument` is to blame for a value that cannot be encoded."""
    if isinstance(error, SessionError) and isinstance(error.__cause__, sqlite3.Error):
        says = "the sessions cannot be read or written now: this one is as it was; the service's log has the request id"
        return ApiError(503, "storage_failed", says, headers=_RETRY, cause=error.__cause__)
    for kind, status, type, headers in _OF_TOKTIER:
        if isinstance(error, kind):
            blamed = argument if status == 400 else _ARGUMENTS.get(type)
            cause = error if status == 500 else None
            return ApiError(status, type, _MESSAGES.get(type) or str(error), blamed, headers=headers, cause=cause)
    return ApiError(500, "internal", INTERNAL, cause=error)
