"""Files become documents: at ends of paragraphs, and now and then anywhere; and seams, where two documents meet."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toktier.errors import InputError

SHORT, LONG = 200, 12_000  # characters of a document
BATCH = 1 << 17  # characters of a batch
_ANYWHERE = 0.25  # share of documents that end anywhere, and not at a paragraph or a line
_SEAM = 300  # characters of a seam on either side


class Document(NamedTuple):
    """A text and where it is from: the file's number and the byte offset in it; of a seam those of both sides."""

    text: str
    places: tuple[tuple[int, int], ...]


class Loaded(NamedTuple):
    """A file that was read: its path, bytes, sha256 (hex) and text."""

    path: str
    size: int
    sha256: str
    text: str


def read(path: str | os.PathLike[str], errors: str = "strict") -> Loaded:
    """A file as text.

    Raises:
      InputError: bytes that are not UTF-8, by offset.
    """
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8", errors)
    except UnicodeDecodeError as e:
        raise InputError(
            f"{path}: byte {e.start} (0x{data[e.start]:02x}) is not UTF-8 ({e.reason}); use --errors replace to put "
            "U+FFFD there, or convert the file first"
        ) from e
    return Loaded(str(path), len(data), hashlib.sha256(data).hexdigest(), text)


def documents(number: int, text: str, rng: random.Random) -> Iterator[Document]:
    """The documents of file `number`, in order; one after the other they are the text."""
    at = offset = 0
    while at < len(text):
        most = at + int(SHORT * (LONG / SHORT) ** rng.random())
        stop = most
        if most < len(text) and rng.random() >= _ANYWHERE:
            found = text.rfind("\n\n", at + 1, most)
            if found < 0:
                found = text.rfind("\n", at + 1, most)
            if found >= 0:
                stop = found + rng.randint(0, 2)  # before, within or behind the newlines
        part = text[at:stop]
        yield Document(part, ((number, offset),))
        at += len(part)
        offset += len(part.encode("utf-8", "surrogatepass"))


def seams(found: Sequence[Document], count: int, rng: random.Random) -> Iterator[Document]:
    """Ends of documents put before beginnings of others: places that no file has."""
    for _ in range(count if found else 0):
        a, b = rng.choice(found), rng.choice(found)
        tail = a.text[-rng.randint(1, _SEAM) :]
        head = b.text[: rng.randint(1, _SEAM)]
        where = a.places[0][1] + len(a.text[: len(a.text) - len(tail)].encode("utf-8", "surrogatepass"))
        yield Document(tail + head, ((a.places[0][0], where), b.places[0]))


def plan(texts: Sequence[str], seed: int) -> tuple[list[list[Document]], int]:
    """All documents of the files, then as many seams, in batches of some 128 K characters; and the number of seams."""
    rng = random.Random(seed)
    cut = [d for number, text in enumerate(texts) for d in documents(number, text, rng)]
    met = list(seams(cut, len(cut), rng))
    batches: list[list[Document]] = []
    size = BATCH
    for document in cut + met:
        if size + len(document.text) > BATCH:
            batches.append([])
            size = 0
        batches[-1].append(document)
        size += len(document.text)
    return batches, len(met)
