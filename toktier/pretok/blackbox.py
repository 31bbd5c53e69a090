"""The reference's splitter as a black box: characters in, a mark for each out.

Marks are those of `tables`: START, INSIDE, DROPPED.  Many texts are asked at once by joining them with a separator
that the reference itself cuts out before its pre-tokenizer runs (an added token of `tokenizers`, a special token of
`tiktoken`), so each is split as a text of its own.
"""

from __future__ import annotations

import abc
import functools
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from toktier.pretok.colours import joined
from toktier.pretok.failure import LearnError
from toktier.pretok.form import parse, reference_json
from toktier.pretok.tables import DROPPED, INSIDE, START

_SEPARATORS = (
    "\ue000",
    "\U000f1234",
    "\U00100001",
    "\uf123",
    "\U000fabcd",
    "\U0010abcd",
)  # private use: one that the asked texts do not hold is taken
_FALLBACK = "(?s:.)"
_LONGEST_DROPPING = 200


def open_blackbox(form: Any, reference: str) -> Blackbox:
    """The splitter of a normal form (toktier/pretok/form.py) in the reference "tokenizers" or "tiktoken"."""
    if reference == "tiktoken":
        if not (isinstance(form, dict) and form.get("type") == "tiktoken"):
            raise LearnError("pretokenizer: a tiktoken reference needs {'type': 'tiktoken', 'pattern': ...}")
        return TiktokenBlackbox(form["pattern"])
    if reference == "tokenizers":
        if isinstance(form, dict):
            raise LearnError("pretokenizer: a tiktoken pattern cannot run in the reference 'tokenizers'")
        return TokenizersBlackbox(reference_json(form))
    raise LearnError(f"reference: {reference!r} is neither 'tokenizers' nor 'tiktoken'")


def splits(
    pretokenizer: str, reference: str, texts: Sequence[str], guesses: Sequence[Sequence[tuple[int, int]]] | None = None
) -> list[list[tuple[int, int]]]:
    """The reference's pieces of each text as (start, end) in characters, `pretokenizer` as in `Spec`.

    `guesses`, pieces in the same form, change nothing but the time: of `tiktoken`, a right guess is confirmed in one
    pass instead of some twenty, and is the only way for runs of more than about 10,000 equal characters.

    >>> splits('{"type": "tiktoken", "pattern": "[a-z]+|[0-9]"}', "tiktoken", ["ab12"])
    [[(0, 2), (2, 3), (3, 4)]]
    """
    box = open_blackbox(parse(pretokenizer)[0], reference)
    marks = (
        [None] * len(texts) if guesses is None else [marks_from(len(t), g) for t, g in zip(texts, guesses, strict=True)]
    )
    return [pieces_of(box.marks_of(text, guess)) for text, guess in zip(texts, marks, strict=True)]


def pieces_of(marks: np.ndarray) -> list[tuple[int, int]]:
    """Marks of one text -> its pieces as (start, end)."""
    edges = np.flatnonzero(marks != INSIDE)
    ends = np.append(edges, len(marks))[1:]
    return [(int(s), int(e)) for s, e in zip(edges, ends, strict=True) if marks[s] == START]


def marks_from(length: int, pieces: Sequence[tuple[int, int]]) -> np.ndarray:
    """The inverse of `pieces_of`, for a text of `length` characters."""
    marks = np.full(length, DROPPED, np.uint8)
    for start, end in pieces:
        marks[start:end] = INSIDE
        marks[start] = START
    return marks


class Blackbox(abc.ABC):
    """What both references share: batches of texts, joined by a separator."""

    reference: str
    chunk_chars = 16384

    @property
    def version(self) -> str:
        """Version of the reference package."""
        return importlib.metadata.version(self.reference)

    def marks(self, points: np.ndarray, guess: np.ndarray | None = None) -> np.ndarray:
        """Marks uint8[N, n] of N texts of n code points each, uint32[N, n].

        `guess` (the same shape as the result) only makes the answer faster where it is right.
        """
        count, length = points.shape
        if not length:
            return np.zeros((count, 0), np.uint8)
        out = np.empty((count, length), np.uint8)
        rows = max(1, self.chunk_chars // (length + 1))
        for at in range(0, count, rows):
            part = points[at : at + rows]
            separator = self._separator(part)
            rows_of = np.full((len(part), length + 1), ord(separator), np.uint32)
            rows_of[:, :length] = part
            flat = (
                None
                if guess is None
                else np.pad(guess[at : at + rows], ((0, 0), (0, 1)), constant_values=DROPPED).ravel()
            )
            out[at : at + rows] = self._joined(rows_of.ravel(), separator, flat).reshape(len(part), -1)[:, :length]
        return out

    def marks_of(self, text: str, guess: np.ndarray | None = None) -> np.ndarray:
        """Marks of one text; `guess` as in `marks`."""
        return self.marks(_points(text)[None], None if guess is None else guess[None])[0]

    @staticmethod
    def _separator(points: np.ndarray) -> str:
        for candidate in _SEPARATORS:
            if not (points == ord(candidate)).any():
                return candidate
        raise LearnError("the asked texts hold every separator")

    @abc.abstractmethod
    def _joined(self, points: np.ndarray, separator: str, guess: np.ndarray | None) -> np.ndarray:
        """The marks of texts that are asked in one, with the separator between them."""


class TokenizersBlackbox(Blackbox):
    """`tokenizers`: a Tokenizer whose model gives every piece one id; its offsets are the pieces."""

    reference = "tokenizers"

    def __init__(self, pre_tokenizer: Any) -> None:
        self.pre_tokenizer = pre_tokenizer
        self._engines: dict[str, Any] = {}

    def _joined(self, points: np.ndarray, separator: str, guess: np.ndarray | None) -> np.ndarray:
        spans = self.spans(_text(points), separator)
        marks = np.full(len(points), DROPPED, np.uint8)
        depth = np.zeros(len(points) + 1, np.int32)
        np.add.at(depth, spans[:, 0], 1)
        np.add.at(depth, spans[:, 1], -1)
        marks[np.cumsum(depth[:-1]) > 0] = INSIDE
        reached = np.maximum.accumulate(np.append(0, spans[:-1, 1])) if len(spans) else np.zeros(0, np.int64)
        marks[spans[spans[:, 0] >= reached, 0]] = START  # a piece that begins inside a character starts no character
        return marks

    def spans(self, text: str, separator: str) -> np.ndarray:
        """int64[k, 2]: character offsets of all pieces (a separator is one too); those inside a character overlap."""
        if separator not in self._engines:
            self._engines[separator] = self._engine(separator)
        offsets = self._engines[separator].encode(text, add_special_tokens=False).offsets
        return np.array(offsets, np.int64).reshape(-1, 2)

    def _engine(self, separator: str) -> Any:
        import tokenizers

        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        config = {
            "version": "1.0",
            "added_tokens": [{"id": 1, "content": separator, "special": True, **flags}],
            "pre_tokenizer": self.pre_tokenizer,
            "model": {"type": "WordLevel", "vocab": {"?": 0, separator: 1}, "unk_token": "?"},
        }
        try:
            return tokenizers.Tokenizer.from_str(json.dumps(config))
        except Exception as error:
            raise LearnError(f"pretokenizer: `tokenizers` refuses it: {error}") from error


class TiktokenBlackbox(Blackbox):
    """`tiktoken`: an Encoding whose vocabulary is made for the asked texts, so that ids tell the pieces."""

    reference = "tiktoken"
    chunk_chars = 1 << 17

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._bytes = {bytes([b]): b for b in range(256)}

    def _joined(self, points: np.ndarray, separator: str, guess: np.ndarray | None) -> np.ndarray:
        text = _text(points)
        if guess is not None and self._confirmed(text, separator, guess):
            return guess
        encode = functools.partial(self._encode, self.pattern, text, separator)
        try:
            together = joined(encode, points, ord(separator))
        except LearnError:
            if len(self._encode(self.pattern, text, separator, self._bytes)) == _byte_count(text, separator):
                raise
            # a last alternative takes what the pattern drops, character by character
            pattern = f"(?:{self.pattern})|{_FALLBACK}"
            together = joined(functools.partial(self._encode, pattern, text, separator), points, ord(separator))
            marks = np.where(together, INSIDE, START).astype(np.uint8)
            self._mark_dropped(text.split(separator), separator, marks)
        else:
            marks = np.where(together, INSIDE, START).astype(np.uint8)
        marks[points == ord(separator)] = DROPPED
        return marks

    def _encode(self, pattern: str, text: str, separator: str, ranks: dict[bytes, int]) -> np.ndarray:
        return self.encoding(pattern, ranks, separator).encode_to_numpy(text, allowed_special="all")

    def encoding(self, pattern: str, ranks: dict[bytes, int], separator: str) -> Any:
        """The engine for one pattern and vocabulary; the separator is the id behind the last rank."""
        import tiktoken

        try:
            return tiktoken.Encoding(
                "asked", pat_str=pattern, mergeable_ranks=ranks, special_tokens={separator: len(ranks)}
            )
        except Exception as error:
            raise LearnError(f"pretokenizer: `tiktoken` refuses the pattern: {error}") from error

    def _confirmed(self, text: str, separator: str, guess: np.ndarray) -> bool:
        """Are the guessed marks the reference's?

        The vocabulary holds each guessed piece and each two that touch.  Ids equal to the guess's ids then prove it: a
        piece of the reference that cut a guessed piece could not give its id, and one that spanned two would have
        merged them, for `tiktoken` merges any two neighbours whose bytes are a token.
        """
        edges = np.flatnonzero(guess != INSIDE)
        ends = np.append(edges, len(text))[1:]
        kept = guess[edges] == START
        if (guess[edges[~kept]] == DROPPED).sum() != text.count(separator):
            return False  # dropped characters leave no trace in the ids: ask exhaustively
        words = [text[s:e] for s, e in zip(edges[kept].tolist(), ends[kept].tolist(), strict=True)]
        touching = {
            a + b for a, b, near in zip(words, words[1:], np.diff(np.flatnonzero(kept)) == 1, strict=False) if near
        }
        ranks = dict(self._bytes)
        for word in {*words, *touching}:
            ranks.setdefault(word.encode(), len(ranks))
        ids = self._encode(self.pattern, text, separator, ranks)
        want = np.full(len(edges), len(ranks), np.int64)
        of_word = {word: ranks[word.encode()] for word in set(words)}
        want[kept] = [of_word[word] for word in words]
        return np.array_equal(ids, want)

    def _mark_dropped(self, texts: list[str], separator: str, marks: np.ndarray) -> None:
        """Turn START into DROPPED where the pattern does not match, once a last alternative took what it dropped."""
        begin = np.cumsum([0] + [len(t) + 1 for t in texts])[:-1]
        longest = max(map(len, texts), default=0)
        if longest > _LONGEST_DROPPING:
            raise LearnError(
                f"text: the pattern drops characters; pieces can then be asked only of texts up to {_LONGEST_DROPPING} "
                f"characters, not {longest}"
            )
        text = separator.join(texts)
        for offset in range(longest):
            probe = rf"\A(?s:.{{{offset}}})(?!(?:{self.pattern})){_FALLBACK}"
            ids = self._encode(probe, text, separator, self._bytes)
            text_of = np.cumsum(ids == 256)
            failing = begin[np.unique(text_of[ids != 256])] + offset
            marks[failing[marks[failing] == START]] = DROPPED


def _byte_count(text: str, separator: str) -> int:
    """Ids of a text whose vocabulary is the single bytes, if no character is dropped."""
    count = text.count(separator)
    return len(text.encode()) - count * (len(separator.encode()) - 1)


def _text(points: np.ndarray) -> str:
    return np.ascontiguousarray(points, np.uint32).tobytes().decode("utf-32-le")


def _points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
