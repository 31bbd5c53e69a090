"""Derived tables on disk, in the user's cache directory: arrays and a little JSON under a kind and a key.

The cache only ever saves time.  Where its directory cannot be made, read or written, everything works without it; an
entry that is damaged, of another format, stored for another key or owned by another user is removed if possible, and
counts as absent, so that the caller builds it again.

    [magic, 8 bytes][length of the header, 8][BLAKE2b of all that follows, 32][header, JSON][arrays, 64-aligned]

No entry can make code run: the header is JSON, and an array is of a plain number type or refused.  Entries are written
to a file of their own name and then renamed, so readers and writers in many processes never see half an entry.
Verification reads every byte; BLAKE2b does a gigabyte a second on any machine, and unlike a CRC it misses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ENVIRONMENT = "TOKTIER_CACHE"
_MAGIC = b"toktier1"  # the digit is the version of the format
_PREFIX = struct.Struct("<8sQ32s")
_ALIGN = 64
_NUMBERS = "biufc"  # kinds of plain numbers: no objects, no strings


class Entry(dict[str, np.ndarray]):
    """Arrays by name, as stored (read-only), with the JSON values stored beside them in `meta`."""

    def __init__(self, arrays: Mapping[str, np.ndarray], meta: dict[str, Any]) -> None:
        super().__init__(arrays)
        self.meta = meta


def directory() -> Path:
    """Where entries are kept: the environment variable TOKTIER_CACHE, else the user's cache directory.

    The directory need not exist.  TOKTIER_CACHE="" turns the cache off.
    """
    chosen = os.environ.get(ENVIRONMENT)
    if chosen is not None:
        return Path(chosen or os.devnull).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("toktier", appauthor=False))


def path(kind: str, key: str) -> Path:
    """The file of an entry.  `kind` is a short name; any text may be a key."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", kind):
        raise ValueError(f"kind={kind!r}: a kind is a short lower-case name, such as 'spec'")
    name = key if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", key) else hashlib.sha256(key.encode()).hexdigest()
    return directory() / f"{kind}-{name}.bin"


def get(kind: str, key: str) -> Entry | None:
    """The entry, or None where there is none that can be trusted (what is damaged is removed)."""
    file = path(kind, key)
    try:
        with open(file, "rb") as stream:
            if not _ours(os.fstat(stream.fileno())):
                return None
            content = stream.read()
    except OSError:
        return None
    entry = _unpack(content, kind, key)
    if entry is None:
        with contextlib.suppress(OSError):
            file.unlink()
    return entry


def put(kind: str, key: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> bool:
    """Stores arrays (of numbers) and JSON values; returns whether they are on disk now.

    Raises:
      TypeError: an array that is not of numbers, or a value in `meta` that JSON cannot hold.
    """
    file = path(kind, key)
    parts = _pack(kind, key, arrays, dict(meta or {}))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".tmp")
    except OSError:
        return False
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(parts)
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True


def _ours(status: os.stat_result) -> bool:
    """Whether an entry is by this user or the machine's owner and nobody else may have changed it."""
    if not hasattr(os, "geteuid"):
        return True
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def _pack(kind: str, key: str, arrays: Mapping[str, np.ndarray], meta: dict[str, Any]) -> list[bytes]:
    """The content of an entry, in parts."""
    described: list[list[Any]] = []
    payload: list[bytes] = []
    for name, value in arrays.items():
        array = np.asarray(value)
        if array.dtype.kind not in _NUMBERS:
            raise TypeError(f"arrays[{name!r}] is of {array.dtype}; only arrays of numbers are stored")
        raw = array.tobytes()
        described.append([name, array.dtype.str, list(array.shape)])
        payload += [raw, bytes(-len(raw) % _ALIGN)]
    header = json.dumps({"kind": kind, "key": key, "arrays": described, "meta": meta}).encode()
    header += b" " * (-(_PREFIX.size + len(header)) % _ALIGN)
    digest = hashlib.blake2b(header, digest_size=32)
    for part in payload:
        digest.update(part)
    return [_PREFIX.pack(_MAGIC, len(header), digest.digest()), header, *payload]


def _unpack(content: bytes, kind: str, key: str) -> Entry | None:
    """The inverse of `_pack`; None unless the content is whole and made for this kind and key."""
    if len(content) < _PREFIX.size:
        return None
    magic, length, digest = _PREFIX.unpack_from(content)
    view = memoryview(content)[_PREFIX.size :]
    if magic != _MAGIC or length > len(view) or hashlib.blake2b(view, digest_size=32).digest() != digest:
        return None
    try:
        header = json.loads(bytes(view[:length]))
        if (header["kind"], header["key"]) != (kind, key):
            return None
        arrays, at = {}, _PREFIX.size + length
        for name, dtype_text, shape in header["arrays"]:
            dtype = np.dtype(dtype_text)
            if dtype.kind not in _NUMBERS:
                return None
            if not all(type(n) is int and n >= 0 for n in shape):
                return None
            size = math.prod(shape)
            arrays[name] = np.frombuffer(content, dtype, size, at).reshape(shape)
            at += size * dtype.itemsize
            at += -(size * dtype.itemsize) % _ALIGN
        return Entry(arrays, header["meta"])
    except (
        ValueError,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
    ):
        return None
