"""A session as bytes: versioned, checksummed, bound to the tokenizer by the digest of its spec.

A record is a header, sections and a sha256 over all before it.  The ids are taken from the record, so nothing is
believed that does not fit together: a record that is truncated, damaged, of another version, of another tokenizer or
of another way to read special tokens is refused.

    magic 8 | version uint32 | length of the JSON uint32 | JSON | sections | sha256 32
    sections: text (UTF-8, lone surrogates kept), ids int32, ends uint32, chunk table int64[4, chunks]
"""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import RecordError
from .chunks import Chunk, ChunkList, make_chunk
from .ids import IdBuffer

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer
    from .session import Session

MAGIC = b"toktierS"
VERSION = 1
_HEAD = struct.Struct("<8sII")
_SUM = 32
_WAY_OUT = "discard it and open the session from its text"


class Parts(NamedTuple):
    """What a record holds: the chunks of a text and the ids of all of them."""

    chunks: list[Chunk]
    ids: np.ndarray
    meta: dict[str, Any]


def encode(chunks: list[Chunk], ids: np.ndarray, meta: dict[str, Any]) -> bytes:
    """The record of some chunks, their ids, and what else belongs to it."""
    texts = [c.text.encode("utf-8", "surrogatepass") for c in chunks]
    table = np.array([[len(t), c.n_tokens, c.n_bytes, c.given] for t, c in zip(texts, chunks, strict=True)], "<i8")
    ends = np.concatenate([np.zeros(0, np.uint32), *(c.ends for c in chunks)]).astype("<u4")
    sections = [b"".join(texts), ids.astype("<i4").tobytes(), ends.tobytes(), table.reshape(-1, 4).tobytes()]
    header = json.dumps({**meta, "sections": [len(s) for s in sections]}, sort_keys=True).encode()
    body = b"".join([_HEAD.pack(MAGIC, VERSION, len(header)), header, *sections])
    return body + hashlib.sha256(body).digest()


def decode(data: bytes, what: str = "data") -> Parts:
    """What `encode` wrote.

    Raises:
      RecordError: the record is truncated, damaged or of another version.
    """
    view = memoryview(data).cast("B") if isinstance(data, bytes | bytearray | memoryview) else None
    if view is None:
        raise RecordError(f"{what} must be bytes, not {type(data).__name__}: pass what to_bytes returned")
    if len(view) < _HEAD.size + _SUM:
        raise RecordError(f"{what} is truncated: {len(view)} bytes hold no record; {_WAY_OUT}")
    magic, version, length = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise RecordError(f"{what} is no session record: it begins with {bytes(magic)!r}; {_WAY_OUT}")
    if version != VERSION:
        raise RecordError(f"{what} is a record of version {version}, and this toktier reads {VERSION}; {_WAY_OUT}")
    if hashlib.sha256(view[:-_SUM]).digest() != bytes(view[-_SUM:]):
        raise RecordError(f"{what} is truncated or damaged: its checksum does not hold; {_WAY_OUT}")
    try:
        meta = json.loads(bytes(view[_HEAD.size : _HEAD.size + length]))
        at, sections = _HEAD.size + length, []
        for size in meta.pop("sections"):
            sections.append(view[at : at + size])
            at += size
        if at != len(view) - _SUM:
            raise ValueError("sections and record differ in length")
        text, ids, ends, table = sections
        return Parts(
            _chunks(text, np.frombuffer(ends, "<u4"), np.frombuffer(table, "<i8").reshape(-1, 4)), _ids(ids), meta
        )
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as e:
        raise RecordError(f"{what} does not fit together ({e}); {_WAY_OUT}") from None


def pack(session: Session) -> bytes:
    """The record of a session; its lock is held by the caller."""
    return encode(session._chunks.chunks, session._own_ids(), meta(session))


def meta(session: Session) -> dict[str, Any]:
    """What a record is bound to."""
    special = session._special_tokens
    if special is not None and not isinstance(special, str):
        special = sorted(special)
    made: dict[str, Any] = {"spec": session._engine.digest, "special_tokens": special, "repair": session._mode}
    # without places of tokens, and with the ids around them among them: only good for a session that has none either
    return {**made, "add": session._engine.framed, **({"unplaced": True} if session._engine.reason else {})}


def unpack(tokenizer: Tokenizer, data: bytes, what: str = "data") -> Session:
    """The session of a record."""
    parts = decode(data, what)
    return restore(tokenizer, parts, what)


def restore(tokenizer: Tokenizer, parts: Parts, what: str, engine: Any = None) -> Session:
    """A session from checked parts, if they are of this tokenizer."""
    from .session import Session

    meta = parts.meta
    options = {"special_tokens": meta["special_tokens"], "add_special_tokens": meta["add"], "repair": meta["repair"]}
    session = Session(tokenizer, _windows=engine, **options)
    if parts.meta.get("spec") != session._engine.digest:
        raise RecordError(f"{what} is a session of another tokenizer (its digest differs); {_WAY_OUT}")
    if sum(c.n_tokens for c in parts.chunks) != len(parts.ids):
        raise RecordError(f"{what} does not fit together (ids and ends differ in number); {_WAY_OUT}")
    if meta.get("unplaced", False) != bool(session._engine.reason):
        if any(c.given for c in parts.chunks):
            raise RecordError(f"{what} holds given ids, and was made by another engine; {_WAY_OUT}")
        return Session(tokenizer, "".join(c.text for c in parts.chunks), _windows=session._engine, **options)
    before, after = session._engine.frame
    session._ids, session._chunks = IdBuffer(np.concatenate([before, parts.ids, after])), ChunkList(parts.chunks)
    return session


def _chunks(text: memoryview, ends: np.ndarray, table: np.ndarray) -> list[Chunk]:
    if table.size and (table < 0).any():
        raise ValueError("a negative size")
    chunks, at, token = [], 0, 0
    for size, tokens, n_bytes, given in table.tolist():
        piece = str(text[at : at + size], "utf-8", "surrogatepass")
        its = ends[token : token + tokens]
        if (
            len(its) != tokens
            or not (piece or tokens)
            or (tokens and (int(its[-1]) > n_bytes or (np.diff(its.astype(np.int64)) < 0).any()))
        ):
            raise ValueError("ends that are not in order")
        chunks.append(make_chunk(piece, its, n_bytes, bool(given)))
        at, token = at + size, token + tokens
    if at != len(text) or token != len(ends):
        raise ValueError("chunks and text differ in length")
    return chunks


def _ids(data: memoryview) -> np.ndarray:
    return np.frombuffer(data, "<i4").astype(np.int32)
