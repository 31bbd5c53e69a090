"""Tables of a pre-tokenizer: stored ones by hash, else learned and kept in the user's cache.

A stored core is bound to the normal form of the pre-tokenizer and the reference.  It also holds the reference's
version and the digest of the probed classes; where the version moved, the classes are probed again, and the automata
are taken over only if nothing moved in them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.resources
import json
import lzma
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from toktier import cache
from toktier.errors import SourceError
from toktier.pretok.assemble import Core, assemble
from toktier.pretok.form import canonical, parse
from toktier.pretok.tables import PretokTables

_DATA = "pretok.xz"
_CACHE_KIND = "pretok-3"  # the number moves with the format and with the learner
_TEXTS = ("representatives", "written", "seamed")
_ARRAYS = ("block", "symbol", "left_next", "right_next", "out", "inner")


class Entry(NamedTuple):
    """A stored core with what it is bound to; `proof` holds the counts that the generator printed."""

    core: Core
    name: str
    reference: str
    version: str
    classes_digest: str
    proof: dict[str, Any]


def key_of(form: Any, reference: str) -> str:
    """sha256 (hex) of a normal form in one reference."""
    return hashlib.sha256(f"{reference}\n{canonical(form)}".encode()).hexdigest()


def pack(entries: dict[str, Entry]) -> bytes:
    """Entries by key -> the stored bytes: digest of the rest, header, arrays, all compressed."""
    header, blobs, at = {}, [], 0
    for key, entry in entries.items():
        shapes: dict[str, Any] = {}
        for name in _ARRAYS:
            array = getattr(entry.core, name)
            shapes[name] = [array.dtype.str, list(array.shape), at]
            blobs.append(np.ascontiguousarray(array).tobytes())
            at += len(blobs[-1])
        meta = {k: v for k, v in entry._asdict().items() if k != "core"}
        header[key] = meta | {name: getattr(entry.core, name) for name in _TEXTS} | {"arrays": shapes}
    body = json.dumps(header, sort_keys=True).encode() + b"\n" + b"".join(blobs)
    return lzma.compress(hashlib.sha256(body).digest() + body, preset=9 | lzma.PRESET_EXTREME)


def unpack(data: bytes) -> dict[str, Entry]:
    """The inverse of `pack`; raises `SourceError` where the bytes are damaged."""
    try:
        raw = lzma.decompress(data)
    except lzma.LZMAError as error:
        raise SourceError(f"stored pre-tokenizer tables are damaged ({error}); install toktier again") from error
    digest, body = raw[:32], raw[32:]
    if hashlib.sha256(body).digest() != digest:
        raise SourceError("stored pre-tokenizer tables are damaged (wrong digest); install toktier again")
    text, _, blob = body.partition(b"\n")
    entries = {}
    for key, meta in json.loads(text).items():
        arrays: dict[str, Any] = {}
        for name, (kind, shape, at) in meta.pop("arrays").items():
            count = int(np.prod(shape))
            arrays[name] = np.frombuffer(blob, np.dtype(kind), count, at).reshape(shape)
        entries[key] = Entry(Core(**arrays, **{name: meta.pop(name) for name in _TEXTS}), **meta)
    return entries


@functools.cache
def stored() -> dict[str, Entry]:
    """The entries that come with the package, by key."""
    path = importlib.resources.files("toktier").joinpath("data").joinpath(_DATA)
    return unpack(path.read_bytes()) if path.is_file() else {}


def load_tables(
    pretokenizer: str, reference: str, progress: Callable[[str], None] | bool | None = None
) -> PretokTables:
    """Tables of a pre-tokenizer, `pretokenizer` and `reference` as in `Spec`.

    Stored tables load in milliseconds; any other pre-tokenizer is learned in seconds, checked (docs/proofs.md) and
    kept in the user's cache.  `progress`: a function called with short texts, True for a bar on a terminal (the
    default), False for silence.  Raises `LearnError` with the reason where the pre-tokenizer has no proven tables.

    >>> tables = load_tables('{"type": "ByteLevel", "add_prefix_space": false}', "tokenizers")
    >>> tables.n_symbols, len(tables.left_next), len(tables.right_next)
    (10, 9, 4)
    """
    form, prefix_space = parse(pretokenizer)
    return _load(canonical(form), reference, prefix_space, progress)


def _load(form_json: str, reference: str, prefix_space: bool, progress: Any) -> PretokTables:
    known = _assembled(form_json, reference, prefix_space)
    if known is None:
        with _Bar(progress) as say:
            core = _learned_core(json.loads(form_json), reference, say)
        known = assemble(core, prefix_space)
        _remember[form_json, reference, prefix_space] = known
    return known


_remember: dict[tuple[str, str, bool], PretokTables] = {}


def _assembled(form_json: str, reference: str, prefix_space: bool) -> PretokTables | None:
    """Tables in memory or stored for this version of the reference."""
    key = form_json, reference, prefix_space
    if key not in _remember:
        entry = stored().get(key_of(json.loads(form_json), reference))
        if entry is None or entry.version != importlib.metadata.version(reference):
            return None
        _remember[key] = assemble(entry.core, prefix_space)
    return _remember[key]


def _learned_core(form: Any, reference: str, say: Callable[[str], None]) -> Core:
    from toktier.pretok.build import build
    from toktier.pretok.classes import probe

    key = key_of(form, reference)
    version = importlib.metadata.version(reference)
    cache_key = hashlib.sha256(f"{key} {version}".encode()).hexdigest()
    kept = _cache_get(cache_key)
    if kept is not None:
        return kept
    entry = stored().get(key)
    if entry is not None and probe(form, reference, say).digest == entry.classes_digest:
        core = entry.core
    else:
        core = build(form, reference, progress=say).core
    _cache_put(cache_key, core)
    return core


def _cache_get(key: str) -> Core | None:
    found = cache.get(_CACHE_KIND, key)
    if found is None:
        return None
    fields: dict[str, Any] = {name: found[name] for name in _ARRAYS} | {name: found.meta[name] for name in _TEXTS}
    return Core(**fields)


def _cache_put(key: str, core: Core) -> None:
    arrays = {name: getattr(core, name) for name in _ARRAYS}
    cache.put(_CACHE_KIND, key, arrays, {name: getattr(core, name) for name in _TEXTS})


class _Bar:
    """A line on a terminal that says what is being done; silent elsewhere."""

    def __init__(self, progress: Callable[[str], None] | bool | None) -> None:
        self._call = progress if callable(progress) else None
        self._silent = progress is False

    def __enter__(self) -> Callable[[str], None]:
        if self._call is not None:
            return self._call
        from tqdm import tqdm

        self._bar = tqdm(
            desc="learning the pre-tokenizer", unit=" steps", disable=True if self._silent else None, leave=False
        )
        return self._step

    def _step(self, text: str) -> None:
        self._bar.set_postfix_str(text[:60], refresh=False)
        self._bar.update()

    def __exit__(self, *_: object) -> None:
        if self._call is None:
            self._bar.close()
