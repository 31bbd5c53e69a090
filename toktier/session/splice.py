"""Putting a window's tokens into a session's chunks."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from .chunks import CHARS, Chunk, ChunkList, chunk_of, make_chunk
from .repair import Encoded, Splice, WindowEngine, beside

SMALL = CHARS // 4  # a chunk below this takes its left neighbour in


def build(engine: WindowEngine, text: str, encoded: Encoded) -> list[Chunk]:
    """Chunks of a text that was tokenized on its own, cut every 4,096 characters or so where it may be cut."""
    if not text and not len(encoded.ids):
        return []
    if len(text) <= 2 * CHARS:
        return [make_chunk(text, encoded.ends, encoded.n_bytes)]
    rules, at, texts = engine.rules, 0, []
    while len(text) - at > 2 * CHARS:
        cut = rules.last(text, at + CHARS, at + CHARS // 2)
        if cut < 0:
            cut = rules.first(text, at + CHARS + 1)
        if cut < 0:
            break
        texts.append(text[at:cut])
        at = cut
    texts.append(text[at:])
    bytes_behind = np.cumsum([engine.measure(t) for t in texts])
    if bytes_behind[-1] != encoded.n_bytes:
        raise AssertionError("a text and its chunks differ in length: a cut that the normalizer does not respect")
    tokens = [0, *np.searchsorted(encoded.ends, bytes_behind, "right").tolist()]
    starts = [0, *bytes_behind.tolist()]
    return [
        make_chunk(t, encoded.ends[tokens[i] : tokens[i + 1]] - starts[i], starts[i + 1] - starts[i])
        for i, t in enumerate(texts)
    ]


class Plan(NamedTuple):
    """What a splice does to the chunks and to the ids: `new` for chunks [first, last), `removed` ids at `token`."""

    first: int
    last: int
    new: list[Chunk]
    token: int
    removed: int


def planned(chunks: ChunkList, engine: WindowEngine, splice: Splice) -> Plan:
    """Where a splice goes."""
    n = chunks.n_chars
    text, ends, n_bytes = splice.window, splice.encoded.ends, splice.encoded.n_bytes
    if not chunks.chunks:
        return Plan(0, 0, build(engine, text, splice.encoded), 0, 0)
    first = chunks.find(splice.c1)
    at, token, byte = chunks.before(first)
    start, byte1 = chunks.locate(splice.c1, engine)
    stop, byte2 = (chunks.n_tokens, chunks.n_bytes) if splice.c2 == n else chunks.locate(splice.c2, engine)
    head = splice.c1 - at  # characters of chunk `first` that stay
    if head == 0 and first > 0:
        small = len(text) < SMALL and len(chunks.chunks[first - 1].text) < CHARS
        if small and not chunks.chunks[first - 1].given and isinstance(chunks.chunks[first - 1].text, str):
            first -= 1
            at, token, byte = chunks.before(first)
            head = splice.c1 - at
    if head and chunks.chunks[first].given:  # the whole chunk stays: a change never cuts one
        first, head = first + 1, 0
    kept: list[Chunk] = []
    if head >= SMALL <= len(text):  # two chunks cost less than one that is put together
        chunk = chunks.chunks[first]
        kept = [chunk_of(chunk.text[:head], chunk.ends[: start - token], byte1 - byte)]
    elif head:
        chunk = chunks.chunks[first]
        shift = byte1 - byte
        text = chunk.text[:head] + text
        ends = np.concatenate([chunk.ends[: start - token].astype(np.int64), ends + shift])
        n_bytes += shift
    last = first
    if splice.c2 == n:
        last = len(chunks)
    elif splice.c2 > splice.c1 or head:
        last = chunks.find(splice.c2)
        at, token, byte = chunks.before(last)
        if splice.c2 > at:
            chunk = chunks.chunks[last]
            shift = n_bytes - (byte2 - byte)
            text += chunk.text[splice.c2 - at :]
            ends = np.concatenate([ends, chunk.ends[stop - token :] + np.int64(shift)])
            n_bytes = chunk.n_bytes + shift
            last += 1
    new = kept + build(engine, text, Encoded(splice.encoded.ids, ends, n_bytes))
    return Plan(first, max(first, last), new, start, stop - start)


def appended(chunks: ChunkList, engine: WindowEngine, text: str) -> tuple[Splice, Plan] | None:
    """`repair.certified` and `planned` for an append to a last chunk that holds a cut; else None.

    The same in a straight line, since of all changes this is the one that has to be quick: nothing is behind it, and
    the cut is mostly a few characters before it.
    """
    k = len(chunks.chunks) - 1
    if k < 0 or chunks.n_given:
        return None
    chunk = chunks.chunks[k]
    old, n = chunk.text, len(chunk.text)
    if n < 4:
        return None
    back = beside(engine.rules, old[-3:], "", text[:2])
    head = n - back if back >= 0 else engine.rules.last(old, n - 2)
    if head <= 0:
        return None
    gone = old[head:]
    window = gone + text
    encoded = engine.encode(window, True)
    size = chunk.n_bytes - engine.measure(gone)
    tokens = bisect_right(chunk.ends.data, size)
    kept = chunk_of(old[:head], chunk.ends[:tokens], size)
    if head >= SMALL <= len(window):
        new = [kept, *build(engine, window, encoded)]
    else:
        ends = np.concatenate([kept.ends.astype(np.int64), encoded.ends + size])
        new = build(engine, kept.text + window, Encoded(encoded.ids, ends, size + encoded.n_bytes))
    at, token, _ = chunks.before(k)
    splice = Splice(at + head, at + n, window, encoded, "certified", 0)
    return splice, Plan(k, k + 1, new, token + tokens, len(chunk.ends) - tokens)
