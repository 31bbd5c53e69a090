"""Ids on the wire: as JSON, or as they lie in memory (little-endian int32)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

_BLOCK = 1 << 16  # ids formatted at a time: the work space stays in the cache


def ids_json(ids: np.ndarray) -> bytes:
    """A JSON array of ids, int32[n] from 0 on: what `json.dumps(ids.tolist())` gives, without blanks.

    Formatted by NumPy, which makes no object a token and lets other threads run meanwhile.
    """
    if len(ids) < 256:
        return json.dumps(ids.tolist(), separators=(",", ":")).encode()
    parts = [_digits(ids[at : at + _BLOCK].astype(np.uint32)) for at in range(0, len(ids), _BLOCK)]
    return b"[" + b"".join(parts)[:-1] + b"]"


def _digits(values: np.ndarray) -> bytes:
    """Decimal digits of uint32[n], a comma behind each number."""
    width = len(str(int(values.max())))
    table = np.empty((len(values), width + 1), np.uint8)
    keep = np.ones((len(values), width + 1), bool)
    table[:, width] = ord(",")
    rest = values
    for column in range(width - 1, -1, -1):
        shorter = rest // np.uint32(10)
        table[:, column] = rest - shorter * np.uint32(10) + np.uint32(ord("0"))
        if column < width - 1:
            keep[:, column] = rest > 0
        rest = shorter
    return table[keep].tobytes()


def raw(ids: np.ndarray) -> bytes:
    """Ids as little-endian int32."""
    return np.ascontiguousarray(ids, "<i4").tobytes()


def digest(ids: np.ndarray) -> str:
    """sha256 (hex) of the raw ids: equal for equal ids, in any process and at any time."""
    return hashlib.sha256(np.ascontiguousarray(ids, "<i4").data).hexdigest()


def dump(value: Any) -> bytes:
    """JSON of a value in which arrays of ids may stand."""
    if isinstance(value, np.ndarray):
        return ids_json(value)
    if isinstance(value, dict):
        return b"{" + b",".join(json.dumps(k).encode() + b":" + dump(v) for k, v in value.items()) + b"}"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
