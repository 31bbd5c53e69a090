"""Ids in: text, JSON or .npy, told apart by how they begin."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from toktier.errors import InputError

_BLANKS = re.compile(r"\s*")


def parse(data: bytes, name: str) -> Iterator[np.ndarray]:
    """The id sequences (int64[k] each) that `data` holds; what cannot be read is an InputError with its place."""
    if data.startswith(b"\x93NUMPY"):
        yield _from_npy(data, name)
    elif data.lstrip()[:1] in (b"[", b"{"):
        yield from _from_json(data, name)
    else:
        yield _from_text(data, name)


def _from_npy(data: bytes, name: str) -> np.ndarray:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as e:
        raise InputError(f"{name}: a damaged .npy file: {e}") from e
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(f"{name}: ids are one row of integers, this is {array.dtype}{list(array.shape)}")
    return array.astype(np.int64)


def _from_text(data: bytes, name: str) -> np.ndarray:
    words = data.replace(b",", b" ").split()
    try:
        return np.array(words, dtype="S").astype(np.int64) if words else np.zeros(0, np.int64)
    except (ValueError, OverflowError):
        for number, word in enumerate(words):
            if not _is_integer(word):
                shown = word[:40].decode("utf-8", "backslashreplace")
                raise InputError(f"{name}: id number {number} is {shown!r}, not an integer") from None
        raise


def _is_integer(word: bytes) -> bool:
    try:
        return abs(int(word)) < 1 << 63
    except ValueError:
        return False


def _from_json(data: bytes, name: str) -> Iterator[np.ndarray]:
    decoder = json.JSONDecoder()
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise InputError(f"{name}: byte {e.start} is not UTF-8, so this is not JSON") from e
    at = _after_blanks(content, 0)
    while at < len(content):
        try:
            value, end = decoder.raw_decode(content, at)
        except json.JSONDecodeError as e:
            raise InputError(f"{name}: line {e.lineno} column {e.colno} is not JSON: {e.msg}") from e
        ids = value.get("ids") if isinstance(value, dict) else value
        yield _checked(ids, f"{name}: the JSON value at character {at}")
        at = _after_blanks(content, end)


def _after_blanks(content: str, at: int) -> int:
    found = _BLANKS.match(content, at)
    return found.end() if found else at


def _checked(ids: Any, where: str) -> np.ndarray:
    if not isinstance(ids, list):
        raise InputError(f'{where} is neither a list of ids nor an object with "ids"')
    for number, value in enumerate(ids):
        if type(value) is not int or abs(value) >= 1 << 63:
            raise InputError(f"{where}: id number {number} is {json.dumps(value)[:40]}, not an integer")
    return np.array(ids, dtype=np.int64)
