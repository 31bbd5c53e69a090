"""Specs in the cache, by what they were read from, so that a warm load neither parses nor builds anything."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np

from toktier import cache
from toktier.spec import AddedToken, Spec

_KIND = "spec"
_LAYOUT = "3"  # changes with the reading of sources, so that specs read by an older reader are read again
_ARRAYS = {"token_blob": np.uint8, "token_offsets": np.int64, "merges": np.int32}
_TEXTS = (
    "reference",
    "reference_version",
    "merge_rule",
    "ignore_merges",
    "pretokenizer",
    "normalizer",
    "post_processor",
    "decoder",
    "reason",
    "special_default",
    "source_digest",
    "digest",
)


@functools.cache
def version(package: str) -> str:
    """The installed version of a reference."""
    return importlib.metadata.version(package)


def key(reference: str, *parts: bytes | str) -> str:
    """The key of a spec: a digest of everything that it is made from, the reference's version included."""
    h = hashlib.sha256()
    for part in (_LAYOUT, reference, version(reference), *parts):
        raw = part.encode() if isinstance(part, str) else part
        h.update(b"%d:" % len(raw))
        h.update(raw)
    return h.hexdigest()


def load(name: str, at: str) -> Spec | None:
    """The spec kept under this key, if any.  `name` is the caller's, whatever name was stored."""
    entry = cache.get(_KIND, at)
    return None if entry is None else _unpacked(name, entry)


def keep(at: str, spec: Spec) -> Spec:
    """Stores the spec under this key (where that is possible) and returns it."""
    meta: dict[str, Any] = {field: getattr(spec, field) for field in _TEXTS}
    meta["added"] = [list(token) for token in spec.added]
    meta["unwritten"] = [list(entry) for entry in spec.unwritten]
    cache.put(_KIND, at, {field: getattr(spec, field) for field in _ARRAYS}, meta)
    return spec


def load_or_make(name: str, at: str, make: Callable[[], Spec]) -> Spec:
    """The spec kept under this key, or else the one made now, kept for the next time."""
    found = load(name, at)
    return keep(at, make()) if found is None else found


def _unpacked(name: str, entry: cache.Entry) -> Spec | None:
    """The spec of an entry; None where it lacks a field or holds another type, as nothing that we wrote does."""
    if set(entry) != set(_ARRAYS) or set(entry.meta) != {*_TEXTS, "added", "unwritten"}:
        return None
    if any(entry[field].dtype != dtype for field, dtype in _ARRAYS.items()):
        return None
    try:
        added = tuple(AddedToken(*token) for token in entry.meta["added"])
        unwritten = tuple((i, text) for i, text in entry.meta["unwritten"])
    except (TypeError, ValueError):
        return None
    fields: dict[str, Any] = {**entry, **{field: entry.meta[field] for field in _TEXTS}}
    return Spec(name=name, added=added, unwritten=unwritten, **fields)
