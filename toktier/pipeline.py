"""From texts to the one buffer that an engine reads, and from the engine's ids back to the ids of the texts.

    texts -> UTF-8, 0xFF between them -> added tokens cut out -> normalized -> added tokens again -> prefix spaces

All steps work on the buffer of the whole batch, since 0xFF is a boundary to each of them: a batch is one document with
more marks in it.  Afterwards each mark is one 0xFF of the buffer, so their order says where the added ids belong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toktier.added import BOUNDARY, NO_MARKS, SEPARATOR, AddedMatcher, ForbiddenToken, Marks, Mode, separators
from toktier.encoded import Encoded
from toktier.errors import InputError, SpecialTokenError
from toktier.normalize import Normalizer


class Prepared(NamedTuple):
    """What an engine reads, and what is needed to put its ids in order.

    Attributes:
      buffer: uint8[n], UTF-8 with one 0xFF for each mark.
      marks: the added token or document separator behind each 0xFF, in order.
      spaces: int64[p], where in the buffer a prefix space was put in.
    """

    buffer: np.ndarray
    marks: Marks
    spaces: np.ndarray


class Rows(NamedTuple):
    """Ids of the documents of a batch.

    Attributes:
      ids: int32[k]; row i is `ids[offsets[i]:offsets[i + 1]]`.
      offsets: int64[n + 1].
    """

    ids: np.ndarray
    offsets: np.ndarray


_NO_SPACES = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The steps around the engine, for one spec.  Immutable and safe from any thread.

    Attributes:
      added, normalizer: what finds added tokens, and what normalizes the text between them.
      prefix_space: a space goes in front of each segment that does not begin with one.
      repairs: lone surrogates become U+FFFD, and halves that meet become a character, as tiktoken has it; else they
        are an error, as in `tokenizers`.
    """

    added: AddedMatcher
    normalizer: Normalizer
    prefix_space: bool
    repairs: bool

    def prepare(self, texts: Sequence[str], mode: Mode = "parse", *, continued: bool = False) -> Prepared:
        """The buffer of some documents (one or many; none at all is an empty buffer).

        Args:
          texts: the documents.
          mode: what becomes of special tokens.
          continued: the first text goes on from other text: no prefix space in front of it.

        Raises:
          InputError: a text holds a lone surrogate and the reference refuses those.
          SpecialTokenError: `mode` is "forbid" and a text holds a special token.
        """
        if len(texts) == 1:
            buffer, marks = self.utf8(texts[0]), NO_MARKS
        else:
            buffer = self._joined(texts)
            marks = separators(max(len(texts) - 1, 0))
        try:
            unchanged = self.normalizer.unchanged(texts)
            buffer, marks = self.added.cut_raw(buffer, marks, mode)
            if not unchanged:
                buffer = self.normalizer.buffer(buffer)
            buffer, marks = self.added.cut_normalized(buffer, marks, mode)
        except ForbiddenToken as e:
            raise _forbidden(e.literal, texts) from None
        array = np.frombuffer(buffer, np.uint8)
        if self.prefix_space:
            return _with_prefix_spaces(array, marks, continued)
        return Prepared(array, marks, _NO_SPACES)

    def untouched(self, text: str) -> bytes | None:
        """The buffer of a document that these steps leave as it is, whatever the mode; None where that is not plain."""
        kind = self.normalizer.kind
        if self.prefix_space or kind == "reference" or (kind == "nfc" and not text.isascii()):
            return None
        data = self.utf8(text)
        return data if self.added.absent(data) else None

    def utf8(self, text: str) -> bytes:
        """The text in UTF-8, surrogates repaired or refused."""
        try:
            return text.encode()
        except UnicodeEncodeError as e:
            if self.repairs:
                return repaired(text).encode()
            raise InputError(_lone(e, "text")) from None

    def _joined(self, texts: Sequence[str]) -> bytes:
        try:
            return BOUNDARY.join(map(str.encode, texts))
        except UnicodeEncodeError:
            encoded = []
            for k, text in enumerate(texts):
                try:
                    encoded.append(self.utf8(text))
                except InputError as e:
                    raise InputError(f"texts[{k}]: {e}") from None
            return BOUNDARY.join(encoded)


def repaired(text: str) -> str:
    """The text as tiktoken reads it: surrogate pairs joined, lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def finish(prepared: Prepared, encoded: Encoded) -> np.ndarray:
    """int32[k]: the ids of a single document, its added tokens put back."""
    if not len(prepared.marks.ids):
        return encoded.ids
    ids, _ = _inserted(prepared, encoded)
    return ids


def finish_rows(prepared: Prepared, encoded: Encoded) -> Rows:
    """The ids of a batch, row by row."""
    marks = prepared.marks.ids
    if not len(marks):
        return Rows(encoded.ids, np.array([0, len(encoded.ids)], np.int64))
    separator = marks == SEPARATOR
    if separator.all():  # no added token: the engine's ids stay as they are
        rows = np.searchsorted(encoded.ends, np.flatnonzero(prepared.buffer == 0xFF), side="right")
        return Rows(encoded.ids, np.concatenate([[0], rows, [len(encoded.ids)]]).astype(np.int64))
    ids, at = _inserted(prepared, encoded)
    if not separator.any():
        return Rows(ids, np.array([0, len(ids)], np.int64))
    # Separators took a place among the ids; each place in front of which k of them stood moves down by k.
    rows = at[separator] - np.arange(np.count_nonzero(separator))
    kept = np.ones(len(ids), bool)
    kept[at[separator]] = False
    ids = ids[kept]
    return Rows(ids, np.concatenate([[0], rows, [len(ids)]]).astype(np.int64))


def finish_ends(prepared: Prepared, encoded: Encoded) -> np.ndarray:
    """int64[k]: for each id of `finish`, the byte offset behind it in the normalized text (UTF-8).

    The normalized text holds the literals of added tokens as they stood, and no prefix spaces.
    """
    marks = prepared.marks
    ends = encoded.ends
    if len(prepared.spaces):
        ends = ends - np.searchsorted(prepared.spaces, ends, side="left")
    if not len(marks.ids):
        return ends
    holes = np.flatnonzero(prepared.buffer == 0xFF)
    spaces = np.searchsorted(prepared.spaces, holes, side="left") if len(prepared.spaces) else 0
    grown = np.concatenate([[0], np.cumsum(marks.lengths - 1)])
    before = np.searchsorted(holes, encoded.ends, side="left")
    at = np.searchsorted(encoded.ends, holes, side="right") + np.arange(len(holes))
    out = np.empty(len(ends) + len(holes), np.int64)
    kept = np.ones(len(out), bool)
    kept[at] = False
    out[kept] = ends + grown[before]
    out[at] = holes + 1 - spaces + grown[1:]
    return out


def normalized_bytes(prepared: Prepared) -> int:
    """Bytes of the normalized text of a single document."""
    size = len(prepared.buffer) - len(prepared.spaces)
    return size + int((prepared.marks.lengths - 1).sum()) if len(prepared.marks.ids) else size


def finish_placed(prepared: Prepared, encoded: Encoded) -> tuple[np.ndarray, np.ndarray, int]:
    """(`finish`, `finish_ends`, `normalized_bytes`) of a single document."""
    if not len(prepared.marks.ids) and not len(prepared.spaces):
        return encoded.ids, encoded.ends, len(prepared.buffer)
    return finish(prepared, encoded), finish_ends(prepared, encoded), normalized_bytes(prepared)


def finish_lengths(prepared: Prepared, ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """As `finish_placed`, where every byte but the marks is in a token and no space was put in.

    Args:
      ids: int32[k], an engine's.  lengths: int64[k], bytes of each.
    """
    marks = prepared.marks
    holes = np.flatnonzero(prepared.buffer == 0xFF)
    at = lengths.cumsum().searchsorted(holes - np.arange(len(holes)), "right").tolist()
    ends = _among(lengths, at, marks.lengths).cumsum()
    return _among(ids, at, marks.ids), ends, int(ends[-1])


def _among(values: np.ndarray, at: list[int], new: np.ndarray) -> np.ndarray:
    """The values with new[j] in front of values[at[j]]; `np.insert` takes four times as long for a few."""
    parts, last = [], 0
    for j, place in enumerate(at):
        parts += [values[last:place], new[j : j + 1]]
        last = place
    return np.concatenate([*parts, values[last:]])


def _inserted(prepared: Prepared, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """(ids with every mark's id among them, places of the marks)."""
    holes = np.flatnonzero(prepared.buffer == 0xFF)
    at = np.searchsorted(encoded.ends, holes, side="right") + np.arange(len(holes))
    ids = np.empty(len(encoded.ids) + len(holes), np.int32)
    kept = np.ones(len(ids), bool)
    kept[at] = False
    ids[kept] = encoded.ids
    ids[at] = prepared.marks.ids
    return ids, at


def _with_prefix_spaces(buffer: np.ndarray, marks: Marks, continued: bool) -> Prepared:
    """Puts a space in front of each segment that is not empty and does not begin with one."""
    starts = np.flatnonzero(buffer == 0xFF) + 1
    if not continued:
        starts = np.concatenate([[0], starts])
    starts = starts[starts < len(buffer)]
    first = buffer[starts]
    starts = starts[(first != 0xFF) & (first != 0x20)]
    if not len(starts):
        return Prepared(buffer, marks, _NO_SPACES)
    return Prepared(np.insert(buffer, starts, 0x20), marks, starts + np.arange(len(starts)))


def _lone(error: UnicodeEncodeError, name: str) -> str:
    value = ord(error.object[error.start])
    return (
        f"{name} holds a lone surrogate U+{value:04X} at character {error.start}, which no UTF-8 can write; the "
        "reference refuses it too. text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') repairs it"
    )


def _forbidden(literal: str, texts: Sequence[str]) -> SpecialTokenError:
    way_out = "special_tokens='parse' to make it its id, special_tokens='text' to read it as plain text"
    for k, text in enumerate(texts):
        if (at := text.find(literal)) >= 0:
            name = "text" if len(texts) == 1 else f"texts[{k}]"
            message = f"{name} holds the special token {literal!r} at character {at}; pass {way_out}"
            return SpecialTokenError(message, literal)
    return SpecialTokenError(f"the text holds the special token {literal!r}; pass {way_out}", literal)
