"""Text of many sequences whose ids come one a step each, as a model generates a batch."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np

from toktier.decode import Decoder, StreamDecoder
from toktier.errors import InputError, InputTypeError


class BatchDecoder:
    """As many `StreamDecoder`s as there are rows, pushed together; made by `Tokenizer.batch_decoder`.

    What the pushes of a row gave, with what `finish` gives, is `decode` of the row's ids since it began; no push splits
    a character.  Rows are apart: each may be finished or reset while others go on.

    A token that is whole characters, where none is open, is one look-up; the others pass a decoder of their row.

    >>> import toktier
    >>> tok = toktier.load("o200k_base")
    >>> stream = tok.batch_decoder(2)
    >>> steps = zip(tok.encode("é 🫠").tolist(), tok.encode("a b c d").tolist())
    >>> [stream.push(ids) for ids in steps]
    [['é', 'a'], [' ', ' b'], ['', ' c'], ['🫠', ' d']]
    >>> stream.finish(0), stream.push([64], rows=[1])
    ('', ['a'])
    """

    def __init__(self, decoder: Decoder, rows: int, skip_special_tokens: bool = False) -> None:
        if isinstance(rows, bool) or not isinstance(rows, (int, np.integer)):
            raise InputTypeError(f"rows must be an int, not {type(rows).__name__}; it is how many sequences there are")
        if rows < 0:
            raise InputError(f"rows={rows} is negative; it is how many sequences there are")
        self._decoder, self._skip, self._rows = decoder, skip_special_tokens, int(rows)
        self._texts: dict[int, str] = {}  # of tokens that are whole characters
        self._open: dict[int, codecs.IncrementalDecoder] = {}  # by row, where a character is incomplete
        # a decoder that looks at neighbours has all ids of its row
        self._streams = None if decoder.byte_level else [self._stream() for _ in range(self._rows)]

    def __len__(self) -> int:
        return self._rows

    def push(self, ids: Any, rows: Sequence[int] | None = None) -> list[str]:
        """The text that each id completes, "" while a character is incomplete.

        Args:
          ids: one a row, in the order of `rows`: a sequence of int, or an integer array [k].
          rows: which rows, each once; None for all, in order.

        Raises:
          InputError: not one id a row, an unknown id, a row that there is not.  Nothing has changed then.
          InputTypeError: as `Tokenizer.decode`.
        """
        tokens = self._decoder.check(ids).tolist()
        where: Sequence[int] = range(self._rows) if rows is None else [self._row(row) for row in rows]
        if len(tokens) != len(where):
            raise InputError(f"ids has {len(tokens)} ids for {len(where)} rows; give one for each, or name the rows")
        if rows is not None and len(set(where)) != len(where):
            twice = next(row for k, row in enumerate(where) if row in where[:k])
            raise InputError(f"rows names row {twice} twice; push one id at a time for each")
        if self._streams is not None:
            return [self._streams[row].push(token) for row, token in zip(where, tokens, strict=True)]
        known = [self._texts.get(token) for token in tokens]
        if self._open or None in known:
            for k, row in enumerate(where):
                text = known[k]
                if text is None or row in self._open:
                    known[k] = self._pass(row, tokens[k])
        return known  # type: ignore[return-value]

    def finish(self, row: int) -> str:
        """What was held back of a row, with U+FFFD for an incomplete character; the row then begins afresh.

        Raises:
          InputError, InputTypeError: there is no such row.
        """
        row = self._row(row)
        if self._streams is not None:
            return self._streams[row].flush()
        waiting = self._open.pop(row, None)
        return waiting.decode(b"", final=True) if waiting is not None else ""

    def reset(self, row: int) -> None:
        """Gives up what was held back of a row; it begins afresh.

        Raises:
          InputError, InputTypeError: there is no such row.
        """
        row = self._row(row)
        if self._streams is not None:
            self._streams[row] = self._stream()
        self._open.pop(row, None)

    def _pass(self, row: int, token: int) -> str:
        """The text of a token that may be part of a character."""
        data = self._decoder.decode_bytes([token], skip_special_tokens=self._skip)
        waiting = self._open.get(row)
        if waiting is None:
            try:
                return self._texts.setdefault(token, data.decode())
            except UnicodeDecodeError:
                waiting = codecs.getincrementaldecoder("utf-8")("replace")
        text = waiting.decode(data)
        if waiting.getstate()[0]:
            self._open[row] = waiting
        else:
            self._open.pop(row, None)
        return text

    def _stream(self) -> StreamDecoder:
        return StreamDecoder(self._decoder, self._skip)

    def _row(self, row: Any) -> int:
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)):
            raise InputTypeError(f"a row is an int, not {type(row).__name__}")
        if not 0 <= row < self._rows:
            raise InputError(f"row {row} is none of the {self._rows} rows, which count from 0")
        return int(row)
