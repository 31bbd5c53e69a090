"""Ids given by the caller: they stay as they are, and only what a change cuts apart becomes text again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, InputTypeError
from .chunks import CHARS, Chunk, ChunkList, make_chunk

if TYPE_CHECKING:
    from .session import Session

TOKENS = CHARS // 4  # of a chunk


def given_chunks(engine: Any, ids: Iterable[int] | np.ndarray) -> tuple[np.ndarray, list[Chunk]]:
    """(int32 ids, their chunks).  A chunk ends where a character does, so that its text is its own."""
    array = _ids(ids)
    pieces = engine.token_bytes(array)
    chunks: list[Chunk] = []
    start = 0
    while start < len(pieces):
        stop = min(start + TOKENS, len(pieces))
        while stop < len(pieces) and not _whole(b"".join(pieces[max(start, stop - 8) : stop])):
            stop += 1
        data = b"".join(pieces[start:stop])
        ends = np.cumsum([len(p) for p in pieces[start:stop]], dtype=np.int64)
        text = data.decode("utf-8", "replace")
        if not text:
            raise InputError(f"ids[{start}:{stop}] stand for no text at all: nothing can be kept of them")
        chunks.append(make_chunk(text, ends, len(data), given=True))
        start = stop
    return array, chunks


def around(session: Session, start: int, stop: int, text: str) -> tuple[int, int, str]:
    """Widen a change so that it cuts no given id apart, and part the chunks of given ids where it touches them."""
    chunks = session._chunks
    low = _edge(chunks, start, down=True)
    high = _edge(chunks, stop, down=False) if stop > start or low < start else stop
    text = chunks.slice(low, start) + text + chunks.slice(stop, high)
    for char in (low, high):
        _part(chunks, char)
    return low, high, text


def _edge(chunks: ChunkList, char: int, down: bool) -> int:
    """The nearest place at, before or behind `char` where given ids may be parted."""
    k = chunks.find(char)
    at = chunks.before(k)[0]
    chunk = chunks.chunks[k]
    inside = char - at
    if not chunk.given or inside in (0, len(chunk.text)):
        return char
    places = _places(chunk)
    i = int(places.searchsorted(inside, "right" if down else "left"))
    return at + int(places[i - 1] if down else places[i])


def _part(chunks: ChunkList, char: int) -> None:
    """Split the chunk of given ids that `char` lies in."""
    k = chunks.find(char)
    chunk = chunks.chunks[k]
    inside = char - chunks.before(k)[0]
    if not chunk.given or inside in (0, len(chunk.text)):
        return
    byte = len(chunk.text[:inside].encode())
    token = int(chunk.ends.searchsorted(byte, "right"))
    left = make_chunk(chunk.text[:inside], chunk.ends[:token], byte, given=True)
    ends = chunk.ends[token:].astype(np.int64) - byte
    right = make_chunk(chunk.text[inside:], ends, chunk.n_bytes - byte, given=True)
    chunks.replace(k, k + 1, [left, right])


def _places(chunk: Chunk) -> np.ndarray:
    """Offsets of characters where a token ends too; only the ends of a chunk whose bytes are not text."""
    data = chunk.text.encode("utf-8", "surrogatepass")
    outer = np.array([0, len(chunk.text)])
    if len(data) != chunk.n_bytes or "\ufffd" in chunk.text:
        return outer
    starts = np.flatnonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80)
    return np.union1d(np.flatnonzero(np.isin(starts, chunk.ends)), outer)


def _whole(data: bytes) -> bool:
    """Do the bytes end with a whole character?"""
    tail = data[-4:]
    for back in range(1, len(tail) + 1):
        byte = tail[-back]
        if byte & 0xC0 != 0x80:
            need = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back >= need
    return True


def _ids(ids: Iterable[int] | np.ndarray) -> np.ndarray:
    if isinstance(ids, str | bytes):
        raise InputTypeError(f"ids must be a sequence of integers, not {type(ids).__name__}: to add text use append")
    try:
        array = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids))
    except (TypeError, ValueError):
        raise InputTypeError(f"ids must be a sequence of integers, not {type(ids).__name__}") from None
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise InputTypeError(f"ids must be integers in one dimension, not {array.dtype} of shape {array.shape}")
    bad = np.flatnonzero((array < 0) | (array >= 1 << 31)) if len(array) else array
    if len(bad):
        raise InputError(f"ids[{bad[0]}]={array[bad[0]]} is not an id of this tokenizer: ids are 0 and greater")
    return array.astype(np.int32)
