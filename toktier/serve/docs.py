"""What the OpenAPI page says of endpoints, which read their bodies themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from .schemas import ErrorBody
from .state import RAW

_FORMAT = {
    "name": "format",
    "in": "query",
    "schema": {"type": "string", "enum": ["json", "raw"]},
    "description": "raw: ids as little-endian int32, counts in headers (also by Accept: application/octet-stream).",
}


def described(
    request: type[BaseModel] | None,
    response: type[BaseModel],
    *,
    raw: bool = False,
    query: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Arguments of a route.

    Args:
      request: shape of the body, None where there is none.
      response: shape of the answer.
      raw: whether the answer can be raw ids.
      query: further parameters of the address, with their descriptions.
    """
    extra: dict[str, Any] = {}
    if request is not None:
        schema = request.model_json_schema()
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text}
        for name, text in (query or {}).items()
    ]
    if raw:
        parameters.append(_FORMAT)
    if parameters:
        extra["parameters"] = parameters
    content: dict[str, Any] = {RAW: {"schema": {"type": "string", "format": "binary"}}} if raw else {}
    return {
        "response_model": None,
        "openapi_extra": extra,
        "responses": {200: {"model": response, "content": content}, "default": {"model": ErrorBody}},
    }
