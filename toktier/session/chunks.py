"""Text and token ends of a session as a list of immutable chunks.

A chunk is a stretch of text between two places where the text may be cut, so its tokens are its own.  A change replaces
the few chunks it touches; forks share the rest.  Nothing here joins or copies the whole text but `text()` and `ends()`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple, Protocol

import numpy as np

CHARS = 4096  # a chunk aims at this many characters, and is split from twice as many


class Measuring(Protocol):
    """What is asked of a tokenizer here."""

    def measure(self, text: str) -> int:
        """UTF-8 bytes of the normalized text."""
        ...


class Chunk(NamedTuple):
    """Some text and where its tokens end."""

    text: str  # or what stands for it (forgotten.py)
    ends: (
        np.ndarray
    )  # uint16 or uint32 [tokens]: exclusive end of each token, in normalized UTF-8 bytes from the chunk's start
    n_bytes: int  # of the normalized text
    given: bool  # ids came from the caller: they are not the text's own, and the chunk is not cut
    held: int  # bytes of memory, counted once: a string grows when its UTF-8 is asked for in C

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.ends)


def make_chunk(text: str, ends: np.ndarray, n_bytes: int, given: bool = False) -> Chunk:
    """A chunk with its ends as narrow as they can be."""
    return chunk_of(text, ends.astype(np.uint16 if n_bytes < 1 << 16 else np.uint32), n_bytes, given)


def chunk_of(text: Any, ends: np.ndarray, n_bytes: int, given: bool = False) -> Chunk:
    """A chunk that holds the string as CPython stores it, the ends, and 240 bytes for the objects around them."""
    return Chunk(text, ends, n_bytes, given, text.__sizeof__() + ends.nbytes + 240)


class ChunkList:
    """Chunks in order, with the characters, tokens and bytes before each.

    `_at[row, k]` counts the characters (row 0), tokens (1) and bytes (2) before chunk k; column `len(chunks)` has the
    totals.  Appending costs the new columns; a change in the middle adds to those behind it, one for 4,096 characters.
    """

    __slots__ = ("_at", "_bytes", "_chars", "_held", "_tokens", "chunks", "n_given", "touched")

    def __init__(self, chunks: list[Chunk] | None = None) -> None:
        self.chunks: list[Chunk] = []
        self._count(np.zeros((3, 16), np.int64))
        self._held = 0  # bytes of the chunks themselves
        self.n_given = 0
        self.touched = 0
        if chunks:
            self.replace(0, 0, chunks)

    def _count(self, at: np.ndarray) -> None:
        """Take `at` for `_at`; of a single number a memoryview makes an int five times as fast as an array."""
        self._chars, self._tokens, self._bytes = at[0].data, at[1].data, at[2].data
        self._at = at

    def __len__(self) -> int:
        return len(self.chunks)

    @property
    def n_chars(self) -> int:
        """Characters of the text."""
        return self._chars[len(self.chunks)]

    @property
    def n_tokens(self) -> int:
        """Tokens of all chunks."""
        return self._tokens[len(self.chunks)]

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of the normalized text."""
        return self._bytes[len(self.chunks)]

    def before(self, k: int) -> tuple[int, int, int]:
        """(characters, tokens, bytes) before chunk k."""
        return self._chars[k], self._tokens[k], self._bytes[k]

    def find(self, char: int) -> int:
        """The last chunk that starts at or before `char` (0 where there is none)."""
        n = len(self.chunks)
        if n and char >= self._chars[n - 1]:  # the usual place of a change
            return n - 1
        return max(bisect_right(self._chars, char, 0, n) - 1, 0)

    def find_token(self, token: int) -> int:
        """The last chunk whose first token is at or before `token`."""
        return max(bisect_right(self._tokens, token, 0, len(self.chunks)) - 1, 0)

    def reserve(self, more: int) -> None:
        """Room for `more` chunks, so that `replace` only moves numbers."""
        need = len(self.chunks) + more + 1
        if need > self._at.shape[1]:
            bigger = np.zeros((3, need + (need >> 1) + 16), np.int64)
            bigger[:, : len(self.chunks) + 1] = self._at[:, : len(self.chunks) + 1]
            self._count(bigger)  # grows by half: three numbers copied for each chunk that was ever put in

    def replace(self, first: int, last: int, new: list[Chunk]) -> None:
        """Put `new` in place of chunks[first:last]."""
        self.reserve(len(new))
        old, gone = len(self.chunks), self.chunks[first:last]
        held, given, columns = self._held, self.n_given, []
        for c in gone:
            held -= c.held
            given -= c.given
        chars, tokens, n_bytes = self.before(first)
        for c in new:
            held += c.held
            given += c.given
            chars, tokens, n_bytes = chars + len(c.text), tokens + len(c.ends), n_bytes + c.n_bytes
            columns.append((chars, tokens, n_bytes))
        touched = self.touched + 3 * (len(new) + old + 1 - last)
        block, middle = np.array(columns, np.int64).reshape(-1, 3).T, first + 1 + len(new)
        if last < old:
            tail = self._at[:, last + 1 : old + 1] + (np.array([chars, tokens, n_bytes]) - self._at[:, last])[:, None]
            block = np.concatenate([block, tail], axis=1)
            middle += old - last
        # no call and no loop from here on: where an interrupt comes, it comes before all of it or behind
        self._at[:, first + 1 : middle] = block
        self.chunks[first:last] = new
        self._held, self.n_given, self.touched = held, given, touched

    def retext(self, k: int, text: Any) -> None:
        """Chunk k, with its text put back or forgotten."""
        chunk = self.chunks[k]
        new = chunk_of(text, chunk.ends, chunk.n_bytes, chunk.given)
        held = self._held + new.held - chunk.held
        self.chunks[k] = new
        self._held = held

    def fork(self) -> ChunkList:
        """The same chunks in a list of its own."""
        other = object.__new__(ChunkList)
        other._count(self._at.copy())
        other.chunks, other._held, other.touched = list(self.chunks), self._held, 0
        other.n_given = self.n_given
        return other

    def floor(self, char: int, low: int) -> int:
        """The end of the last chunk of given ids that ends in [low, char], else `low`."""
        k = self.find(max(char - 1, 0)) if self.chunks else -1
        while k >= 0:
            end = self._chars[k + 1]
            if end <= low:
                break
            if self.chunks[k].given and end <= char:
                return end
            k -= 1
        return low

    def ceiling(self, char: int, high: int) -> int:
        """The start of the first chunk of given ids that starts in [char, high], else `high`."""
        k = self.find(char)
        while k < len(self.chunks):
            start = self._chars[k]
            if start >= high:
                break
            if self.chunks[k].given and start >= char:
                return start
            k += 1
        return high

    def locate(self, char: int, engine: Measuring) -> tuple[int, int]:
        """(tokens, bytes) before a character: how many tokens end at or before it."""
        if not self.chunks:
            return 0, 0
        k = self.find(char)
        at, token, byte = self.before(k)
        chunk = self.chunks[k]
        if char == at:
            return token, byte
        if char - at >= len(chunk.text):
            return token + chunk.n_tokens, byte + chunk.n_bytes
        inside = engine.measure(chunk.text[: char - at])
        return token + int(chunk.ends.searchsorted(inside, "right")), byte + inside

    def ends_between(self, first: int, last: int) -> np.ndarray:
        """int64[last - first]: exclusive byte ends of some tokens."""
        if first >= last:
            return np.zeros(0, np.int64)
        k = self.find_token(first)
        parts = []
        while first < last:
            _, token, byte = self.before(k)
            ends = self.chunks[k].ends[first - token : last - token]
            parts.append(ends + np.int64(byte))
            first += len(ends)
            k += 1
        return np.concatenate(parts)

    def slice(self, start: int, stop: int) -> str:
        """Characters [start, stop)."""
        if start >= stop:
            return ""
        k = self.find(start)
        at = self._chars[k]
        chunk = self.chunks[k].text
        if stop <= at + len(chunk):
            return chunk[start - at : stop - at]
        parts = [chunk[start - at :]]
        at += len(chunk)
        while at < stop:
            k += 1
            chunk = self.chunks[k].text
            parts.append(chunk[: stop - at])
            at += len(chunk)
        return "".join(parts)

    def text(self) -> str:
        """The whole text, joined."""
        return "".join([c.text[:] for c in self.chunks])

    def ends(self) -> np.ndarray:
        """int64[tokens]: exclusive byte ends of all tokens in the normalized text."""
        if not self.chunks:
            return np.zeros(0, np.int64)
        parts = [c.ends for c in self.chunks]
        out = np.concatenate([np.zeros(0, np.int64), *parts])
        counts = np.array([len(p) for p in parts])
        return out + np.repeat(self._at[2, : len(parts)], counts)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held (strings as CPython stores them)."""
        return self._held + self._at.nbytes + 8 * len(self.chunks)

    def common_prefix(self, new: str) -> int:
        """Length of the common prefix of the text and `new`, at the speed of comparing memory."""
        at = 0
        for chunk in self.chunks:
            text = chunk.text
            piece = new[at : at + len(text)]
            if piece != text:
                return at + (common_prefix(text, piece) if isinstance(text, str) else 0)
            at += len(text)
        return at

    def common_suffix(self, new: str, limit: int) -> int:
        """Length of the common suffix, at most `limit`."""
        done = 0
        for chunk in reversed(self.chunks):
            text = chunk.text
            take = min(len(text), limit - done)
            if take <= 0:
                break
            b = new[len(new) - done - take : len(new) - done]
            if not isinstance(text, str):  # forgotten: known as a whole only
                if text != b:
                    return done
            elif (a := text[len(text) - take :]) != b:
                return done + common_suffix(a, b)
            done += take
        return done


def common_prefix(a: str, b: str) -> int:
    """Length of the common prefix of two strings: halving, each step one memory comparison."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) >> 1
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(a: str, b: str) -> int:
    """Length of the common suffix of two strings."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) >> 1
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low
