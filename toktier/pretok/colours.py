"""The pieces that a byte-pair engine makes, read from its ids alone.

`tiktoken` does not tell its pieces, but it merges any two neighbours in a piece whose bytes are a token, and nothing
across pieces.  Colour the characters of a text by one bit of their number, and make tokens of the pairs whose first
character has colour 0 and whose second has colour 1: no two such pairs overlap, so each is one id exactly where its
characters share a piece.  Over all bits and both orders that decides every place between two different characters;
runs of one character are decided by tokens of all lengths.  Some 2 log2(characters) + 1 passes, each linear.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toktier.pretok.failure import LearnError

_RUN_BYTES = 1 << 26  # bytes of the tokens for runs, together

Encode = Callable[[dict[bytes, int]], np.ndarray]


def joined(encode: Encode, points: np.ndarray, separator: int) -> np.ndarray:
    """bool[n]: does character i share a piece with the one before?

    `points: uint32[n]` is the text; `encode(ranks)` gives its ids, uint32, for a vocabulary `ranks`, where the
    separator is the id `len(ranks)` and all of the text must be in some piece.
    """
    found = np.zeros(len(points), bool)
    known, number = np.unique(points, return_inverse=True)
    characters = [chr(c).encode() for c in known.tolist()]
    base = {bytes([b]): b for b in range(256)}
    for raw in characters:
        for end in range(2, len(raw) + 1):
            base.setdefault(raw[:end], len(base))
    wide = number.astype(np.int64)
    near = wide[:-1] * len(known) + wide[1:]
    near = np.unique(near[(points[:-1] != separator) & (points[1:] != separator)])
    first, second = np.divmod(near, len(known))
    for bit in range(max(1, int(len(known) - 1).bit_length())):
        for colour in (0, 1):
            chosen = ((first >> bit & 1) == colour) & ((second >> bit & 1) == 1 - colour)
            words = [characters[a] + characters[b] for a, b in zip(first[chosen], second[chosen], strict=True)]
            if words:
                _mark(found, encode, base, characters, {w: 2 for w in words})
    runs = _runs(wide, characters, int(np.searchsorted(known, separator)))
    _mark(found, encode, base, characters, runs)
    return found


def _mark(
    found: np.ndarray, encode: Encode, base: dict[bytes, int], characters: list[bytes], words: dict[bytes, int]
) -> None:
    """Encode with `words` (characters of each) as tokens and mark the characters that they join."""
    ranks = dict(base)
    for word in words:
        ranks[word] = len(ranks)
    length = np.ones(len(ranks) + 1, np.int64)
    length[len(ranks) - len(words) : len(ranks)] = list(words.values())
    ids = encode(ranks)
    spans = length[ids]
    if spans.sum() != len(found):
        raise LearnError("pretokenizer: the pattern drops characters")
    end = np.cumsum(spans)
    change = np.zeros(len(found) + 1, np.int64)
    np.add.at(change, end - spans + 1, 1)
    np.add.at(change, end, -1)
    found |= np.cumsum(change[:-1]) > 0


def _runs(number: np.ndarray, characters: list[bytes], separator: int) -> dict[bytes, int]:
    """Tokens of all lengths from 2 for each character, up to its longest run."""
    edges = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    lengths = np.diff(np.append(edges, len(number)))
    longest = np.zeros(len(characters), np.int64)
    np.maximum.at(longest, number[edges], lengths)
    if separator < len(characters):
        longest[separator] = 0
    sizes = np.array([len(c) for c in characters])
    if (sizes * longest * longest).sum() > 2 * _RUN_BYTES:
        raise LearnError(f"text: a run of {longest.max()} equal characters is too long to ask tiktoken for its pieces")
    return {
        characters[c] * k: k for k in range(2, int(longest.max()) + 1) for c in np.flatnonzero(longest >= k).tolist()
    }
