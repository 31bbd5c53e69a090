"""Added-token literals: found as the reference finds them, cut out of the text, and replaced by one 0xFF each.

Everything works on UTF-8 bytes in which 0xFF is a boundary (it never occurs in UTF-8): the end of one document, or the
place of a literal that was cut out already.  No literal holds 0xFF, so no match crosses a boundary, and a batch of
documents is searched in one go.

`tokenizers` searches twice, leftmost-longest each time: literals with `normalized=False` in the raw text, then those
with `normalized=True` in what is left, after the normalizer ran over each remaining segment.  A match that is not
wanted (a special token to be read as text, a word character beside a `single_word` literal) is dropped, yet what it
covered is not searched again.  `tiktoken` knows special tokens only; where one is the beginning of another, which of
the two it takes is the order of a hash table, so that is asked of the reference itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from toktier.spec import AddedToken, Spec

BOUNDARY = b"\xff"
SEPARATOR = -1  # id of a boundary between two documents, where no added token stands

# The White_Space property, which is `\s` of the reference's regex engine; it has not moved since Unicode 6.3.
WHITE_SPACE = frozenset(
    chr(c).encode()
    for c in (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
)

Mode = str | frozenset[str]
"""`"parse"`, `"text"`, `"forbid"`, or, for tiktoken, the special tokens to parse while the others are text."""
NO_LITERALS = "no literals"  # a mode of this package alone: added tokens of every kind are text


class ForbiddenToken(Exception):
    """A special token was found where none may be; the caller knows the text and words the message."""

    def __init__(self, literal: str) -> None:
        super().__init__(literal)
        self.literal = literal


class Marks(NamedTuple):
    """What stands behind each 0xFF of a buffer, in order.

    ids: int32[m], the added token, or SEPARATOR.  lengths: int64[m], bytes of text that it stands for.
    """

    ids: np.ndarray
    lengths: np.ndarray


Found = Sequence[tuple[int, int, int]]
"""(literal or id, start, stop) of each match in order; bytes of the buffer, white space eaten by a strip included."""

# What becomes of a literal that is matched: it is its token, it is text (what it covers is not searched again), it may
# not be there, or only a look at the text around it can tell.
TAKE, TEXT, FORBID, LOOK_AROUND = 1, 2, 3, 4


class Outcome(NamedTuple):
    """What a place becomes where some literal is the longest: an id, the bytes it covers (0: no match), and one of
    TAKE, TEXT, FORBID and LOOK_AROUND."""

    token: int
    size: int
    act: int


NO_MARKS = Marks(np.zeros(0, np.int32), np.zeros(0, np.int64))


def separators(count: int) -> Marks:
    """Marks of `count` document separators."""
    return Marks(np.full(count, SEPARATOR, np.int32), np.zeros(count, np.int64))


class AddedMatcher:
    """Finds the added tokens of one spec.  Immutable and safe from any thread.

    Args:
      spec: whose `added` tokens to find.
      normalize: the reference's normalizer on a str, for literals with `normalized=True`.
      probe: `probe(text) -> ids` of the reference with every special token parsed; only called for a tiktoken
        vocabulary in which one special token is the beginning of another.

    Attributes:
      reason: why the reference has to run instead, or "".
      longest: bytes of the longest literal, 0 where there is none.
      context_free: no literal looks at the text around it (lstrip, rstrip, single_word).
    """

    def __init__(
        self,
        spec: Spec,
        *,
        normalize: Callable[[str], str] | None = None,
        probe: Callable[[str], Collection[int]] | None = None,
    ) -> None:
        self.reason = ""
        self._alternatives: _Alternatives | None = None
        tokens = [t for t in spec.added if t.content]
        if spec.reference == "tiktoken":
            tokens = [t for t in tokens if t.special]
            raw, normalized = tokens, []
            if _prefix_related([t.content for t in tokens]):
                if probe is None:
                    self.reason = (
                        "one special token is the beginning of another, and tiktoken could not be asked which wins"
                    )
                else:
                    self._alternatives = _Alternatives(tokens, probe)
        else:
            # The order decides between literals that the normalizer makes equal: special tokens come first.
            tokens.sort(key=lambda t: not t.special)
            raw = [t for t in tokens if not t.normalized]
            normalized = [t for t in tokens if t.normalized]
        contents = [t.content for t in normalized]
        if normalize is not None:
            contents = [normalize(c) for c in contents]
            if not all(contents):
                self.reason = "the normalizer leaves nothing of an added token, which then matches everywhere"
                raw, normalized, contents = [], [], []
        self._tiktoken = spec.reference == "tiktoken"
        self._raw = _Pass(raw, [t.content for t in raw])
        self._normalized = _Pass(normalized, contents)
        self.longest = max(self._raw.longest, self._normalized.longest)
        self._searches = [p._search for p in (self._raw, self._normalized) if p._search is not None]
        self.context_free = not (self._raw.flagged or self._normalized.flagged)

    def absent(self, data: bytes) -> bool:
        """Does normalized UTF-8, which was not normalized just now, hold no literal of either search?"""
        return not any(search(data) for search in self._searches)

    def cut_raw(self, buffer: bytes, marks: Marks, mode: Mode = "parse") -> tuple[bytes, Marks]:
        """Cuts out the literals that are matched against the text as it came.

        Args:
          buffer: UTF-8 with one 0xFF for each of `marks`.
          mode: what becomes of special tokens.

        Returns:
          the new buffer and its marks (the same objects where nothing was found).

        Raises:
          ForbiddenToken: mode is "forbid" and there is a special token.
        """
        if mode == NO_LITERALS or (self._tiktoken and mode == "text"):
            return buffer, marks
        if self._alternatives is not None and mode != "forbid":
            return _cut(buffer, marks, self._alternatives.find(buffer, mode))
        if isinstance(mode, frozenset):
            return _cut(buffer, marks, self._allowed.find(buffer, mode))
        return _cut(buffer, marks, self._raw.find(buffer, mode))

    def cut_normalized(self, buffer: bytes, marks: Marks, mode: Mode = "parse") -> tuple[bytes, Marks]:
        """As `cut_raw`, for the literals that are matched against the normalized segments between the marks."""
        if mode == NO_LITERALS:
            return buffer, marks
        return _cut(buffer, marks, self._normalized.find(buffer, mode))

    def outcomes(self, mode: Mode) -> tuple[dict[bytes, Outcome], dict[bytes, Outcome]]:
        """The literals of both searches (`cut_raw`, then `cut_normalized`) as data for another engine.

        Each search takes, from left to right, the longest literal at each place, where the outcome says how many bytes
        it covers; it goes on behind these, or one byte farther where it covers none.
        """
        if mode == NO_LITERALS:
            return {}, {}
        normalized = self._normalized.outcomes(mode)
        if self._tiktoken and mode == "text":
            return {}, normalized
        if self._alternatives is not None and mode != "forbid":
            return self._alternatives.outcomes(mode), normalized
        if isinstance(mode, frozenset):
            return self._allowed.outcomes(mode), normalized
        return self._raw.outcomes(mode), normalized

    @functools.cached_property
    def _allowed(self) -> _Alternatives:
        return _Alternatives(list(self._raw.tokens), None)


class _Pass:
    """One leftmost-longest search over one set of literals."""

    def __init__(self, tokens: list[AddedToken], contents: list[str]) -> None:
        literals = [c.encode() for c in contents]
        self.tokens = tokens
        self.longest = max(map(len, literals), default=0)
        self.flagged = any(t.lstrip or t.rstrip or t.single_word for t in tokens)
        self._literals = literals
        self._ids = [t.id for t in tokens]
        self._special = frozenset(k for k, t in enumerate(tokens) if t.special)
        self._search = _automaton(literals, overlapping=False) if literals else None

    def outcomes(self, mode: Mode) -> dict[bytes, Outcome]:
        """What becomes of each literal; of equal ones the first counts."""
        found: dict[bytes, Outcome] = {}
        for token, literal in zip(self.tokens, self._literals, strict=True):
            act = LOOK_AROUND if token.lstrip or token.rstrip or token.single_word else TAKE
            if token.special and mode != "parse":
                act = FORBID if mode == "forbid" else TEXT
            found.setdefault(literal, Outcome(token.id, len(literal), act))
        return found

    def find(self, buffer: bytes, mode: Mode) -> Found:
        """Ids and places of all matches in order of their start."""
        if self._search is None:
            return []
        found = self._search(buffer)
        if not found:
            return found
        if mode != "parse" and self._special:
            if mode == "forbid":
                for k, _, _ in found:
                    if k in self._special:
                        raise ForbiddenToken(self.tokens[k].content)
            else:
                found = [m for m in found if m[0] not in self._special]
        if self.flagged:
            return self._look_around(buffer, found)
        ids = self._ids
        return [(ids[k], start, stop) for k, start, stop in found]

    def _look_around(self, buffer: bytes, found: Found) -> Found:
        """Drops what is no single word, and lets lstrip and rstrip eat white space, in the reference's order."""
        matches: list[tuple[int, int, int]] = []
        done = 0
        for k, start, stop in found:
            token = self.tokens[k]
            if token.single_word and (_is_word(_before(buffer, start)) or _is_word(_behind(buffer, stop))):
                continue
            if token.lstrip:
                at = start
                while (c := _before(buffer, at)) in WHITE_SPACE:
                    at -= len(c)
                start = max(at, done)
            if token.rstrip:
                while (c := _behind(buffer, stop)) in WHITE_SPACE:
                    stop += len(c)
            if start < stop:  # the reference drops a literal of white space that the one before it ate
                matches.append((token.id, start, stop))
            done = stop
        return matches


class _Alternatives:
    """tiktoken's regex alternation: at each place one literal wins, and is taken only if it is allowed.

    A place whose winner is not allowed is passed by one character, so a literal inside it may still match.
    """

    def __init__(self, tokens: list[AddedToken], probe: Callable[[str], Collection[int]] | None) -> None:
        self._literals = [t.content.encode() for t in tokens]
        self._tokens = tokens
        self._search = _automaton(self._literals, overlapping=True) if tokens else None
        by_id = {t.id: t for t in tokens}
        # The winner among all literals that begin at a place is the winner of the longest one's own text.
        self._winner = {}
        for t in tokens:
            prefixed = any(t.content != other.content and t.content.startswith(other.content) for other in tokens)
            self._winner[t.content] = by_id[next(iter(probe(t.content)))] if prefixed and probe is not None else t

    def outcomes(self, mode: Mode) -> dict[bytes, Outcome]:
        """What each place becomes where this literal is the longest that begins there."""
        found = {}
        for token, literal in zip(self._tokens, self._literals, strict=True):
            winner = self._winner[token.content]
            size = len(winner.content.encode()) if mode == "parse" or winner.content in mode else 0
            found[literal] = Outcome(winner.id, size, TAKE)
        return found

    def find(self, buffer: bytes, mode: Mode) -> Found:
        """Ids and places in order; mode is "parse" or the set of allowed literals."""
        longest: dict[int, int] = {}
        for k, start, stop in self._search(buffer) if self._search is not None else ():
            if stop - start > len(self._literals[longest[start]]) if start in longest else True:
                longest[start] = k
        matches: list[tuple[int, int, int]] = []
        done = 0
        for start in sorted(longest):
            token = self._winner[self._tokens[longest[start]].content]
            if start >= done and (mode == "parse" or token.content in mode):
                done = start + len(token.content.encode())
                matches.append((token.id, start, done))
        return matches


def _automaton(literals: list[bytes], overlapping: bool) -> Callable[[bytes], list[tuple[int, int, int]]]:
    """An Aho-Corasick search `buffer -> [(literal, start, stop), ...]`; of equal literals the first is reported."""
    import ahocorasick_rs

    kind = ahocorasick_rs.MatchKind.Standard if overlapping else ahocorasick_rs.MatchKind.LeftmostLongest
    return functools.partial(
        ahocorasick_rs.BytesAhoCorasick(literals, matchkind=kind).find_matches_as_indexes, overlapping=overlapping
    )


def _prefix_related(contents: list[str]) -> bool:
    """Whether one of the strings is the beginning of another (then a neighbour in sorted order is)."""
    ordered = sorted(set(contents))
    return any(b.startswith(a) for a, b in itertools.pairwise(ordered))


def _cut(buffer: bytes, marks: Marks, matches: Found) -> tuple[bytes, Marks]:
    """Replaces each match by one 0xFF and enters it among the marks."""
    if not matches:
        return buffer, marks
    table = np.fromiter(itertools.chain.from_iterable(matches), np.int64, 3 * len(matches)).reshape(-1, 3)
    ids, starts, lengths = table[:, 0].astype(np.int32), table[:, 1], table[:, 2] - table[:, 1]
    kept = [buffer[a:b] for a, b in zip([0, *table[:, 2].tolist()], [*starts.tolist(), len(buffer)], strict=True)]
    if len(marks.ids):
        old = np.flatnonzero(np.frombuffer(buffer, np.uint8) == 0xFF)
        order = np.argsort(np.concatenate([old, starts]), kind="stable")
        ids = np.concatenate([marks.ids, ids])[order]
        lengths = np.concatenate([marks.lengths, lengths])[order]
    return BOUNDARY.join(kept), Marks(ids, lengths)


def _before(buffer: bytes, at: int) -> bytes:
    """The character that ends in front of `at`; a boundary or nothing where a segment begins."""
    start = at - 1
    while start > 0 and buffer[start] & 0xC0 == 0x80:
        start -= 1
    return buffer[max(start, 0) : at]


def _behind(buffer: bytes, at: int) -> bytes:
    """The character that begins at `at`; a boundary or nothing where a segment ends."""
    stop = at + 1
    while stop < len(buffer) and buffer[stop] & 0xC0 == 0x80:
        stop += 1
    return buffer[at:stop]


def _is_word(char: bytes) -> bool:
    """Whether one UTF-8 character is `\\w` for the reference's regex engine."""
    if char == b"" or char == BOUNDARY:
        return False
    if len(char) == 1:
        return char.isalnum() or char == b"_"
    return _probe_word(char.decode())


@functools.lru_cache(maxsize=1 << 16)
def _probe_word(char: str) -> bool:
    """Asks the reference: a single_word literal does not match behind a word character."""
    return len(_word_prober().encode(char + "\x00").ids) == 0


@functools.cache
def _word_prober():  # type: ignore[no-untyped-def]
    """A tokenizer that knows one literal, U+0000 as a single word, and nothing else."""
    import tokenizers

    prober = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={}, merges=[]))
    prober.add_tokens([tokenizers.AddedToken("\x00", single_word=True, normalized=False)])
    return prober
