"""Ids in: text, JSON or .npy, told apart by how they begin."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from toktier.errors import InputError

_BLANKS = re.compile(r"\s*")


class Sequence(NamedTuple):
    """Ids, integers [k], and where they are, for messages: the file's name, and the JSON value in it."""

    where: str
    ids: np.ndarray


def parse(data: bytes, name: str) -> Iterator[Sequence]:
    """The id sequences that `data` holds; what cannot be read is an InputError with its place."""
    if data.startswith(b"\x93NUMPY"):
        yield Sequence(name, _from_npy(data, name))
    elif data.lstrip()[:1] in (b"[", b"{"):
        yield from _from_json(data, name)
    else:
        yield Sequence(name, _from_text(data, name))


def refused(sequence: Sequence, error: InputError) -> InputError:
    """What the tokenizer says of the ids, with their place and the way out."""
    found = re.match(r"ids\[(\d+)\] (.*)", str(error), re.DOTALL)
    if found is None:
        return InputError(f"{sequence.where}: {error}")
    number, rest = int(found[1]), found[2]
    way_out = (
        "leave it out (-1 and -100 often stand for padding)"
        if sequence.ids[number] < 0
        else "name the tokenizer that made the ids with -t"
    )
    return InputError(f"{sequence.where}: id number {number} {rest}; {way_out}")


def _from_npy(data: bytes, name: str) -> np.ndarray:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as e:
        raise InputError(f"{name}: a damaged .npy file: {e}; write it anew") from e
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name}: ids are one row of integers, this is {array.dtype}{list(array.shape)}; save each row by itself, "
            "as int32"
        )
    return array


def _from_text(data: bytes, name: str) -> np.ndarray:
    words = data.replace(b",", b" ").split()
    try:
        return np.array(words, dtype="S").astype(np.int64) if words else np.zeros(0, np.int64)
    except (ValueError, OverflowError):
        for number, word in enumerate(words):
            if not _is_integer(word):
                shown = word[:40].decode("utf-8", "backslashreplace")
                raise InputError(
                    f"{name}: id number {number} is {shown!r}, not an integer; `toktier encode` makes ids of text"
                ) from None
        raise


def _is_integer(word: bytes) -> bool:
    try:
        return abs(int(word)) < 1 << 63
    except ValueError:
        return False


def _from_json(data: bytes, name: str) -> Iterator[Sequence]:
    decoder = json.JSONDecoder()
    try:
        content = data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise InputError(f"{name}: byte {e.start} is not UTF-8, so this is not JSON; write it anew") from e
    at = _after_blanks(content, 0)
    while at < len(content):
        try:
            value, end = decoder.raw_decode(content, at)
        except json.JSONDecodeError as e:
            raise InputError(f"{name}: line {e.lineno} column {e.colno} is not JSON: {e.msg}; write it anew") from e
        ids = value.get("ids") if isinstance(value, dict) else value
        where = f"{name}: the JSON value at character {at}"
        yield Sequence(where, _checked(ids, where))
        at = _after_blanks(content, end)


def _after_blanks(content: str, at: int) -> int:
    found = _BLANKS.match(content, at)
    return found.end() if found else at


def _checked(ids: Any, where: str) -> np.ndarray:
    if not isinstance(ids, list):
        raise InputError(f'{where} is neither a list of ids nor an object with "ids"; write it as one of the two')
    for number, value in enumerate(ids):
        if type(value) is not int or abs(value) >= 1 << 63:
            raise InputError(f"{where}: id number {number} is {json.dumps(value)[:40]}, not an integer; leave it out")
    return np.array(ids, dtype=np.int64)
