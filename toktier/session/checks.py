"""Arguments of a session, checked where they come in."""

from __future__ import annotations

from typing import Any

from ..errors import InputError, InputTypeError


def check_text(name: str, text: Any) -> None:
    """Raises InputTypeError where `text` is not a str."""
    if not isinstance(text, str):
        raise InputTypeError(
            f"{name} must be a str, not {type(text).__name__}: decode bytes before, pass '' for nothing"
        )


def offset(name: str, value: Any, low: int, high: int) -> int:
    """The offset as an int, if it lies in [low, high]; else InputError or InputTypeError."""
    try:
        at = value.__index__()
    except (AttributeError, TypeError):
        raise InputTypeError(f"{name} must be an int, not {type(value).__name__}: a character offset") from None
    if not low <= at <= high:
        inside = f"{low} to {high}" if high >= low else "none: the session is empty"
        raise InputError(f"{name}={at} lies outside the text: character offsets here are {inside}")
    return at
