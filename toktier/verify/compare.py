"""One batch of texts: what the reference makes of them, what an engine makes of them, and the first difference.

Three levels, asked in this order: *pieces* (where pieces begin), *ids*, *ends* (where tokens end).  Ids alone would
hide a wrong piece whose halves happen not to merge.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, Protocol

import numpy as np

from toktier.added import NO_LITERALS, SEPARATOR
from toktier.core import Core
from toktier.encoded import Encoded
from toktier.pipeline import Prepared, finish_rows

_AROUND = 24  # characters of context beside a difference


class Engine(Protocol):
    """What is compared with the reference: HostEngine and DeviceEngine are such."""

    def encode_buffer(self, buffer: np.ndarray) -> Encoded:
        """Ids and ends of a buffer."""

    def piece_marks(self, buffer: np.ndarray) -> np.ndarray:
        """Starts of the pieces of a buffer."""


class Batch(NamedTuple):
    """Texts, the buffers that an engine reads for them, and what the reference says.

    Attributes:
      texts: the texts.
      encoded, split: which of them are compared at the level of ids, and the buffers of those and of all for pieces.
      ids, offsets: the reference's ids of the texts in `encoded`, flat, and where each begins.
      starts: int64, the reference's piece starts of all texts, in bytes of the normalized texts with one byte between;
        a piece that begins inside a character is told where its character begins, so that a place may come twice.
      begins: int64, where each normalized text begins in that.
    """

    texts: list[str]
    which: list[int]
    encoded: Prepared
    split: Prepared
    ids: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    begins: np.ndarray


class Difference(NamedTuple):
    """The first difference of a batch: level, number of the text, byte offset in its normalized form, both answers."""

    level: str
    text: int
    offset: int
    want: list[int]
    got: list[int]


def batch(core: Core, texts: list[str], mode: Any) -> Batch:
    """Ask the reference about some texts."""
    split = core.pipeline.prepare(texts, NO_LITERALS)
    begins = _begins(split, len(texts))
    starts = _reference_starts(core, texts, split, begins)
    which, rows = [], []
    for i, text in enumerate(texts):
        # a text with a byte that is no token goes to the reference anyway
        if core.missing.values and core.missing.find(core.pipeline.prepare((text,), mode).buffer) >= 0:
            continue
        which.append(i)
        rows.append(core.reference.encode(text, mode))
    encoded = core.pipeline.prepare([texts[i] for i in which], mode)
    offsets = np.cumsum([0, *map(len, rows)])
    ids = np.concatenate([np.zeros(0, np.int32), *rows])
    return Batch(texts, which, encoded, split, ids, offsets, starts, begins)


def first_difference(core: Core, engine: Engine, asked: Batch) -> Difference | None:
    """Compare an engine with the reference on a batch, level by level."""
    got = engine_starts(engine, asked.split)
    if not np.array_equal(got, asked.starts):
        return _of_pieces(asked, got)
    if not asked.which:
        return None
    buffer = asked.encoded.buffer
    nothing = Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64))
    encoded = engine.encode_buffer(buffer) if len(buffer) else nothing
    want = true_ends(core, asked.encoded, encoded.ids)
    # the right ends say which ids are of which text, so that a wrong end is not taken for wrong ids
    ids, offsets = finish_rows(asked.encoded, encoded if want is None else encoded._replace(ends=want))
    if not np.array_equal(ids, asked.ids) or not np.array_equal(offsets, asked.offsets):
        return _of_ids(core, asked, ids, offsets)
    if want is not None and not np.array_equal(want, encoded.ends):
        k = _first(want, encoded.ends)
        at = int(want[min(k, len(want) - 1)])
        text = int(np.count_nonzero(asked.encoded.marks.ids[: np.count_nonzero(buffer[:at] == 0xFF)] == SEPARATOR))
        return Difference("ends", asked.which[text], 0, want[k : k + 8].tolist(), encoded.ends[k : k + 8].tolist())
    return None


def engine_starts(engine: Engine, split: Prepared) -> np.ndarray:
    """int64: where an engine's pieces begin, as `Batch.starts`."""
    if not len(split.buffer):
        return np.zeros(0, np.int64)
    marks = np.asarray(engine.piece_marks(split.buffer), np.int64)
    for _ in range(3):
        marks = marks - (split.buffer[marks] & 0xC0 == 0x80)
    return np.sort(marks - np.searchsorted(split.spaces, marks, side="left"))


def true_ends(core: Core, prepared: Prepared, ids: np.ndarray) -> np.ndarray | None:
    """int64: where tokens end in the buffer, if these ids are right; they tile it.

    None where they do not: the pre-tokenizer drops characters, or the ids are wrong.
    """
    if core.tables.pretok.drops:
        return None
    kept = np.flatnonzero(prepared.buffer != 0xFF)
    ends = np.cumsum(np.diff(core.spec.token_offsets)[ids])
    if (ends[-1] if len(ends) else 0) != len(kept):
        return None
    return kept[ends - 1] + 1


def context(text: str, offset: int) -> str:
    """The characters of a text around a byte offset."""
    raw = text.encode("utf-8", "surrogatepass")
    before = raw[:offset].decode("utf-8", "ignore")
    behind = raw[offset:].decode("utf-8", "ignore")
    return before[-_AROUND:] + behind[:_AROUND]


def _begins(split: Prepared, count: int) -> np.ndarray:
    """int64[count]: where each normalized text begins, prefix spaces left out."""
    holes = np.flatnonzero(split.buffer == 0xFF)[split.marks.ids == SEPARATOR]
    begins = np.concatenate([[0], holes + 1])[:count]
    return begins - np.searchsorted(split.spaces, begins, side="left")


def _reference_starts(core: Core, texts: list[str], split: Prepared, begins: np.ndarray) -> np.ndarray:
    if core.spec.reference == "tokenizers":
        starts = [_piece_starts(core, text) for text in texts]
    else:
        starts = _tiktoken_starts(core, texts, split, begins)
    parts = [np.asarray(s, np.int64) + b for s, b in zip(starts, begins, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _piece_starts(core: Core, text: str) -> np.ndarray:
    """Where pieces begin in the normalized text, in bytes; as often as pieces begin within one character."""
    normalized = core.reference.normalize(text)
    starts = [start for start, _ in core.reference.pieces(normalized)]
    return _byte_offsets(normalized)[np.array(starts, np.int64)]


def _byte_offsets(text: str) -> np.ndarray:
    """int64[n + 1]: the byte offset of each character in the UTF-8, and of the end."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    width = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(width)])


def _tiktoken_starts(core: Core, texts: list[str], split: Prepared, begins: np.ndarray) -> list[np.ndarray]:
    """The pieces of `tiktoken`, which tells ids only: asked with our own as a guess, which saves time."""
    from toktier.pretok.blackbox import splits

    marks = engine_starts(core.host, split)
    guesses, byte_of = [], []
    for i, text in enumerate(texts):
        width = _byte_offsets(text)
        stop = begins[i + 1] if i + 1 < len(texts) else np.iinfo(np.int64).max
        own = marks[np.searchsorted(marks, begins[i]) : np.searchsorted(marks, stop)] - begins[i]
        at = [*np.searchsorted(width, own).tolist(), len(text)]
        guesses.append(list(itertools.pairwise(at)))
        byte_of.append(width)
    found = splits(core.spec.pretokenizer, "tiktoken", texts, guesses)
    return [w[np.array([s for s, _ in pieces], np.int64)] for w, pieces in zip(byte_of, found, strict=True)]


def _first(a: np.ndarray, b: np.ndarray) -> int:
    n = min(len(a), len(b))
    at = np.flatnonzero(a[:n] != b[:n])
    return int(at[0]) if len(at) else n


def _of_pieces(asked: Batch, got: np.ndarray) -> Difference:
    k = _first(asked.starts, got)
    both = [int(a[k]) for a in (asked.starts, got) if k < len(a)]
    text = int(np.searchsorted(asked.begins, min(both), side="right")) - 1
    base = int(asked.begins[text])
    want, have = ((a[k : k + 8] - base).tolist() for a in (asked.starts, got))
    return Difference("pieces", text, min(both) - base, want, have)


def _of_ids(core: Core, asked: Batch, ids: np.ndarray, offsets: np.ndarray) -> Difference:
    for row, text in enumerate(asked.which):
        want = asked.ids[asked.offsets[row] : asked.offsets[row + 1]]
        got = ids[offsets[row] : offsets[row + 1]]
        if not np.array_equal(want, got):
            k = _first(want, got)
            offset = len(core.decoder.decode_bytes(want[:k]))
            return Difference("ids", text, offset, want[k : k + 8].tolist(), got[k : k + 8].tolist())
    raise AssertionError("rows are equal, and yet the batches are not")
