"""Ids of documents, exactly those of `Tokenizer.encode`, a group at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toktier.batch import Batch
from toktier.corpus.documents import Document
from toktier.errors import InputError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

# Characters that are encoded at a time: what fits a processor's caches, or fills a device.
GROUPS = {"device": 8 << 20}
GROUP = 1 << 20
LONG = 16 << 20  # characters from which a document is encoded in chunks, which bounds the memory beside its ids

Encode = Callable[[list[str]], Batch]
"""Ids of texts, one row each."""


class Rows(NamedTuple):
    """Documents with their ids.

    Attributes:
      documents: of n documents, in order.
      ids: int32[k].  lengths: int64[n].
    """

    documents: list[Document]
    ids: np.ndarray
    lengths: np.ndarray


def encoder(tok: Tokenizer, options: dict[str, Any], engine: str) -> Encode:
    """What encodes a group: `Tokenizer.encode_batch` with the run's options, and over all devices for "device"."""
    chosen = {k: options[k] for k in ("add_special_tokens", "special_tokens")}
    if engine == "device":
        tok._engine("device", 0)  # raises where the reference runs the tokenizer
        import jax

        if jax.local_device_count() > 1:
            from toktier.sharded import encode_sharded

            return lambda texts: encode_sharded(tok, texts, **chosen)

    def encode(texts: list[str]) -> Batch:
        if len(texts) == 1 and len(texts[0]) >= LONG:
            try:
                data = texts[0].encode()
            except UnicodeEncodeError:  # a lone surrogate; what it is worth is for the tokenizer to say
                return tok.encode_batch(texts, engine=engine, **chosen)
            ids = tok.encode_file(io.BytesIO(data), engine=engine, **chosen).array()
            return Batch(ids, np.array([0, len(ids)], np.int64))
        return tok.encode_batch(texts, engine=engine, **chosen)

    return encode


def rows(documents: list[Document], encode: Encode, options: dict[str, Any]) -> Rows:
    """A group's documents with ids; one that the tokenizer refuses loses its text and gets the reason as its problem.

    With errors="replace", lone surrogates that the tokenizer refuses become U+FFFD first.
    """
    texts = [d.text for d in documents if d.text is not None]
    try:
        batch = encode(texts) if texts else Batch(np.zeros(0, np.int32), np.zeros(1, np.int64))
    except InputError:
        batch = _one_by_one(documents, encode, options["errors"] == "replace")
    lengths = np.zeros(len(documents), np.int64)
    there = np.array([d.text is not None for d in documents], bool)
    lengths[there] = batch.lengths
    ids, added = batch.ids, [options["bos"], options["eos"]]
    if added != [None, None]:
        ids, lengths = _framed(batch, lengths, there, *added)
    return Rows(documents, ids, lengths)


def _one_by_one(documents: list[Document], encode: Encode, replace: bool) -> Batch:
    """The ids of those documents that have some; the others are marked."""
    found = []
    for d in documents:
        if d.text is None:
            continue
        try:
            found.append(encode([d.text]).ids)
        except InputError as e:
            problem = _said(e)
            repaired = d.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if replace and repaired != d.text:
                try:
                    found.append(encode([repaired]).ids)
                    d.text, d.problem = repaired, problem
                    continue
                except InputError as other:
                    problem = _said(other)
            d.text, d.problem = None, problem
    ends = np.cumsum([0, *map(len, found)], dtype=np.int64)
    return Batch(np.concatenate([np.zeros(0, np.int32), *found]), ends)


def _said(error: InputError) -> str:
    """The message without its name for the text, since a place follows."""
    return str(error).removeprefix("texts[0] ").removeprefix("the stream: ")


def _framed(
    batch: Batch, lengths: np.ndarray, there: np.ndarray, bos: int | None, eos: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows with a token in front of and behind each."""
    before, behind = int(bos is not None), int(eos is not None)
    lengths = lengths + there * (before + behind)
    stops = np.cumsum(lengths[there])
    starts = stops - lengths[there]
    ids = np.empty(int(lengths.sum()), np.int32)
    inner = np.ones(len(ids), bool)
    if bos is not None:
        ids[starts], inner[starts] = bos, False
    if eos is not None:
        ids[stops - 1], inner[stops - 1] = eos, False
    ids[inner] = batch.ids
    return ids, lengths


def groups(documents: Iterator[Document], engine: str) -> Iterator[list[Document]]:
    """Documents together up to the characters that suit the engine; a long one by itself."""
    most = GROUPS.get(engine, GROUP)
    waiting: list[Document] = []
    size = 0
    for document in documents:
        length = len(document.text or "")
        if waiting and size + length > most:
            yield waiting
            waiting, size = [], 0
        waiting.append(document)
        size += length + 64  # a document without text is none without cost
    if waiting:
        yield waiting
