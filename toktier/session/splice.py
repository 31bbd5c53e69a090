"""Putting a window's tokens into a session's chunks."""

from __future__ import annotations

import numpy as np

from .chunks import CHARS, Chunk, ChunkList, make_chunk
from .repair import Encoded, Splice, WindowEngine

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


class Plan:
    """What a splice does to the chunks (`first`, `last`, `new`) and to the ids (`token`, `removed`)."""

    __slots__ = ("first", "last", "new", "removed", "token")

    def __init__(self, chunks: ChunkList, engine: WindowEngine, splice: Splice) -> None:
        n = chunks.n_chars
        text, ends, n_bytes = splice.window, splice.encoded.ends, splice.encoded.n_bytes
        if not chunks.chunks:
            self.first = self.last = self.token = self.removed = 0
            self.new = build(engine, text, splice.encoded)
            return
        self.token, byte1 = chunks.locate(splice.c1, engine)
        behind, byte2 = (chunks.n_tokens, chunks.n_bytes) if splice.c2 == n else chunks.locate(splice.c2, engine)
        self.removed = behind - self.token
        first = chunks.find(splice.c1)
        at, token, byte = chunks.before(first)
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
            kept = [Chunk(chunk.text[:head], chunk.ends[: self.token - token], byte1 - byte)]
        elif head:
            chunk = chunks.chunks[first]
            shift = byte1 - byte
            text = chunk.text[:head] + text
            ends = np.concatenate([chunk.ends[: self.token - token].astype(np.int64), ends + shift])
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
                ends = np.concatenate([ends, chunk.ends[behind - token :] + np.int64(shift)])
                n_bytes = chunk.n_bytes + shift
                last += 1
        self.first, self.last = first, max(first, last)
        self.new = kept + build(engine, text, Encoded(splice.encoded.ids, ends, n_bytes))
