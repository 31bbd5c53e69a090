"""Conformance of a learned bimachine with the reference: the W-method on both sides, output, and random texts.

What passing proves, and under which assumption, is stated and proven in docs/proofs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from toktier.pretok.learn import Bimachine, Word, shrink_tests

_CHUNK = 1 << 16


class Plan(NamedTuple):
    """How much to test: extra states allowed on each side (`left`, `right`) and in all (`total`)."""

    left: int
    right: int
    total: int


def word_sets(machine: Bimachine, plan: Plan) -> Iterator[tuple[str, np.ndarray]]:
    """All test words of the plan as (name, uint8[N, n]).

    "left": access word, up to left + 1 symbols, test word; "right": mirrored; "out": left access word, up to total + 1
    symbols, right access word.
    """
    empty = [b""]
    yield from _product("left", machine.left_words, machine.n_symbols, plan.left + 1, machine.left_tests or empty)
    yield from _product("right", machine.right_tests or empty, machine.n_symbols, plan.right + 1, machine.right_words)
    yield from _product("out", machine.left_words, machine.n_symbols, plan.total + 1, machine.right_words)


def count_words(machine: Bimachine, plan: Plan) -> dict[str, int]:
    """Number of words in each set of `word_sets`."""

    def middles(longest: int) -> int:
        return sum(machine.n_symbols**k for k in range(longest + 1))

    left, right = len(machine.left_words), len(machine.right_words)
    return {
        "left": left * middles(plan.left + 1) * max(1, len(machine.left_tests)),
        "right": right * middles(plan.right + 1) * max(1, len(machine.right_tests)),
        "out": left * middles(plan.total + 1) * right,
    }


def _product(
    name: str, fronts: list[Word], n_symbols: int, longest: int, backs: list[Word]
) -> Iterator[tuple[str, np.ndarray]]:
    for middle in range(longest + 1):
        total = n_symbols**middle
        for at in range(0, total, _CHUNK):
            number = np.arange(at, min(at + _CHUNK, total))
            digits = np.empty((len(number), middle), np.uint8)
            for k in range(middle - 1, -1, -1):
                number, digits[:, k] = np.divmod(number, n_symbols)
            for front in fronts:
                for back in backs:
                    words = np.empty((len(digits), len(front) + middle + len(back)), np.uint8)
                    words[:, : len(front)] = np.frombuffer(front, np.uint8)
                    words[:, len(front) : len(front) + middle] = digits
                    words[:, len(front) + middle :] = np.frombuffer(back, np.uint8)
                    yield name, words


def random_words(
    n_symbols: int, rng: np.random.Generator, count: int, length: int, seeds: Sequence[Word] = ()
) -> np.ndarray:
    """uint8[count, length]: runny words, which stay with one or two symbols for a while, as text does.

    Half of the words hold a beginning of one of `seeds`, words that chance would hardly build.
    """
    few = rng.integers(0, n_symbols, (count, 4))
    stay = rng.random((count, 1)) * 0.9
    words = np.empty((count, length), np.int64)
    words[:, 0] = few[:, 0]
    for i in range(1, length):
        fresh = np.where(
            rng.random(count) < 0.7, few[np.arange(count), rng.integers(0, 4, count)], rng.integers(0, n_symbols, count)
        )
        words[:, i] = np.where(rng.random(count) < stay[:, 0], words[:, i - 1], fresh)
    for row in range(0, count if seeds else 0, 2):
        seed = seeds[int(rng.integers(0, len(seeds)))][: length if rng.random() < 0.5 else rng.integers(1, length + 1)]
        at = rng.integers(0, length - len(seed) + 1)
        words[row, at : at + len(seed)] = list(seed)
    return words.astype(np.uint8)


class Splitter(Protocol):
    """What is compared with a bimachine."""

    def marks(self, points: np.ndarray, guess: np.ndarray | None = None) -> np.ndarray:
        """Marks uint8[N, n] of N texts of n code points each, uint32[N, n]; `guess` may make them come sooner."""
        ...


class Comparer:
    """A splitter and a bimachine on the same words; `points_of[x]` is the representative of symbol x."""

    def __init__(self, box: Splitter, representatives: str, seeds: Sequence[Word] = ()) -> None:
        self.box = box
        self.seeds = seeds
        self.points_of = np.array([ord(c) for c in representatives], np.uint32)
        self.asked = 0

    def ask(self, words: Sequence[Word]) -> list[bytes]:
        """The reference's marks of words of any lengths."""
        by_length: dict[int, list[int]] = {}
        for i, word in enumerate(words):
            by_length.setdefault(len(word), []).append(i)
        out = [b""] * len(words)
        for length, which in by_length.items():
            block = np.frombuffer(b"".join(words[i] for i in which), np.uint8).reshape(-1, length)
            for i, row in zip(which, self.box.marks(self.points_of[block]), strict=True):
                out[i] = row.tobytes()
        self.asked += len(words)
        return out

    def wrong(self, machine: Bimachine, words: np.ndarray) -> np.ndarray:
        """The rows of `words` on which the machine differs from the reference."""
        claim = machine.marks(words)
        truth = self.box.marks(self.points_of[words], claim)
        self.asked += len(words)
        return words[(claim != truth).any(axis=1)]

    def search(
        self,
        machine: Bimachine,
        plan: Plan,
        rng: np.random.Generator,
        random_count: int,
        progress: Callable[[str, int], None] | None = None,
    ) -> list[Word]:
        """Counterexamples: random words first, then every word set; empty where none is found."""
        longest = max(map(len, self.seeds), default=0)
        for length in (5, 8, 13, 30 + longest):
            count = max(1, random_count // (4 if length < 30 else 16))
            found = self.wrong(machine, random_words(machine.n_symbols, rng, count, length, self.seeds))
            if len(found):
                return _shortest(found)
        pending: list[np.ndarray] = []
        size = 0
        for name, words in word_sets(shrink_tests(machine), plan):
            if pending and (pending[0].shape[1] != words.shape[1] or size > _CHUNK):
                found = self.wrong(machine, np.concatenate(pending))
                if len(found):
                    return _shortest(found)
                pending, size = [], 0
            pending.append(words)
            size += len(words)
            if progress:
                progress(name, len(words))
        found = self.wrong(machine, np.concatenate(pending)) if pending else np.zeros((0, 0))
        return _shortest(found) if len(found) else []


def _shortest(found: np.ndarray) -> list[Word]:
    return [row.tobytes() for row in found[:8]]
