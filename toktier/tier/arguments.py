"""What a tier is given, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError, InputTypeError
from ..tokenizer import Tokenizer


def check_numbers(**given: tuple[Any, float]) -> None:
    """Each value must be a number of at least so much."""
    for name, (value, least) in given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InputTypeError(f"{name} must be a number, not {type(value).__name__}")
        if not value >= least:
            raise InputError(f"{name}={value!r} is too small: use {least} or more")


def loaded(tokenizers: Any) -> dict[str, Tokenizer]:
    """Tokenizers by name."""
    from .. import load

    if not isinstance(tokenizers, Mapping):
        tok = tokenizers if isinstance(tokenizers, Tokenizer) else load(tokenizers)
        return {tok.spec.name: tok}
    if not tokenizers:
        raise InputError("tokenizers is empty: a tier needs one tokenizer or more")
    for name in tokenizers:
        if not isinstance(name, str) or not name:
            raise InputTypeError(f"tokenizers: the name {name!r} must be a str, and not empty")
    return {name: t if isinstance(t, Tokenizer) else load(t) for name, t in tokenizers.items()}


def file(path: str | Path) -> Path:
    """The SQLite file of a path, which may be a folder."""
    path = Path(path)
    return path / "sessions.db" if path.is_dir() else path


def seconds(timeout: Any) -> float | None:
    """A timeout."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise InputTypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout > 0:
        raise InputError(f"timeout={timeout!r} must be above 0 seconds, or None for no limit")
    return float(timeout)
