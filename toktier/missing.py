"""Bytes that no token of the vocabulary stands for, and texts that hold one.

Some vocabularies lack single bytes (Falcon has none for 0x03 and 0xF1, StarCoder none for 0xF1).  The engines run such
a tokenizer; only a text that holds such a byte, after normalization and outside of added tokens, goes to the reference
as a whole.  What the reference does is known well enough to place its tokens: without an unknown token, `tokenizers`
leaves the byte out of its piece, so the other bytes of the text are those of the tokens, in order.  `tiktoken` refuses.
"""

from __future__ import annotations

import numpy as np

from toktier.encoded import Encoded
from toktier.errors import EngineError
from toktier.pipeline import Prepared
from toktier.spec import Spec

NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))  # UTF-8 never holds these


class MissingBytes:
    """The bytes that a vocabulary lacks, among those that UTF-8 can hold.

    Attributes:
      values: the bytes, ascending; empty for nearly every vocabulary.
    """

    def __init__(self, spec: Spec) -> None:
        single = spec.token_offsets[:-1][np.diff(spec.token_offsets) == 1]
        there = set(spec.token_blob[single].tolist())
        self.values = bytes(b for b in range(256) if b not in there and b not in NEVER)
        self._table = np.zeros(256, bool)
        self._table[list(self.values)] = True
        self._spec = spec

    def find(self, buffer: np.ndarray) -> int:
        """Offset of the first such byte in `buffer: uint8[n]`, or -1."""
        if not self.values:
            return -1
        raw = buffer.tobytes()
        if len(raw.translate(None, self.values)) == len(raw):
            return -1
        return int(np.argmax(self._table[buffer]))

    def why(self, prepared: Prepared, at: int) -> str:
        """What stands at offset `at` of the buffer, for messages; its offset is in the normalized text."""
        holes = np.count_nonzero(prepared.buffer[:at] == 0xFF)
        spaces = int(np.searchsorted(prepared.spaces, at))
        offset = at - spaces + int((prepared.marks.lengths[:holes] - 1).sum())
        return f"the byte 0x{prepared.buffer[at]:02X} at byte {offset} of the normalized text is no token"

    def placed(self, prepared: Prepared, ids: np.ndarray) -> Encoded:
        """The reference's ids of a single document with their places, as an engine would have returned them.

        Args:
          prepared: the document, which holds such a byte.
          ids: int32[k], the reference's, added tokens among them.

        Raises:
          EngineError: the ids do not spell the other bytes of the text.
        """
        kept = np.flatnonzero(~self._table[prepared.buffer])
        data = prepared.buffer[kept].tobytes()
        spelled = np.append(0, np.cumsum(~self._table[self._spec.token_blob]))[self._spec.token_offsets]
        lengths = np.diff(spelled)  # of the tokens, without such bytes: only a whole piece can be a token that has some
        at, end = 0, 0
        own, ends = [], []
        for token in ids.tolist():
            if at < len(data) and data[at] == 0xFF:  # an added token
                at += 1
                continue
            at += int(lengths[token])
            raw = self._spec.token_bytes(token)
            if lengths[token] < len(raw):
                shown = len(raw.rstrip(self.values))
                end = (int(kept[at - 1]) + 1 if shown else end) + len(raw) - shown
            else:
                end = int(kept[at - 1]) + 1
            own.append(token)
            ends.append(end)
        if data[at:].strip(b"\xff"):
            raise EngineError(f"the reference's ids have no places in this text ({at} bytes of {len(data)})")
        return Encoded(np.array(own, np.int32), np.array(ends, np.int64))
