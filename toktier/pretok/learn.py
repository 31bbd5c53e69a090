"""Active learning of a bimachine from the reference splitter.

Two texts u, u' in front are *the same to the left automaton* if they put the same marks on every text v behind them:
marks(u v) and marks(u' v) agree on v.  Mirrored for the right automaton.  Both are congruences, their classes are the
states of the smallest automata that, with one output table, give the splitter's marks.  A table of observations
(words that reach states, test words that tell states apart) grows by counterexamples, each of which yields a new test
word by walking along it until replacing its beginning (or end) by a state's word changes the marks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from toktier.pretok.failure import LearnError

MAX_STATES = 255
_MAX_ROUNDS = 400

Word = bytes  # symbols, one a byte
Ask = Callable[[Sequence[Word]], list[bytes]]  # words -> marks, one a symbol


@dataclasses.dataclass
class Bimachine:
    """Automata and output over S symbols, and the words that learning found.

    `left_next: uint8[QL, S]`, `right_next: uint8[QR, S]`, `out: uint8[QL, S, QR]` as in PretokTables; `left_words[q]`
    (`right_words[q]`) is a word that leads to state q from the start (the end) of a text; `left_tests` (`right_tests`)
    are words behind (in front) whose marks tell any two states apart.
    """

    left_next: np.ndarray
    right_next: np.ndarray
    out: np.ndarray
    left_words: list[Word]
    right_words: list[Word]
    left_tests: list[Word]
    right_tests: list[Word]

    @property
    def n_symbols(self) -> int:
        return self.left_next.shape[1]

    def marks(self, words: np.ndarray) -> np.ndarray:
        """Marks uint8[N, n] of N words of n symbols each, uint8[N, n]."""
        count, length = words.shape
        behind = np.zeros((length + 1, count), np.uint8)
        for i in range(length - 1, -1, -1):
            behind[i] = self.right_next[behind[i + 1], words[:, i]]
        marks = np.empty(words.shape, np.uint8)
        before = np.zeros(count, np.uint8)
        for i in range(length):
            marks[:, i] = self.out[before, words[:, i], behind[i + 1]]
            before = self.left_next[before, words[:, i]]
        return marks

    def marks_of(self, word: Word) -> bytes:
        """Marks of one word."""
        return self.marks(np.frombuffer(word, np.uint8)[None])[0].tobytes()


def learn(
    ask: Ask,
    n_symbols: int,
    counterexamples: Callable[[Bimachine], Iterable[Word]],
    progress: Callable[[str], None] | None = None,
) -> Bimachine:
    """Learn until `counterexamples` finds none.

    `counterexamples(machine)` returns words on which the machine is wrong (few, short ones).  Raises `LearnError`
    where an automaton passes 255 states or the rounds do not end.
    """
    learner = _Learner(ask, n_symbols)
    for number in range(_MAX_ROUNDS):
        machine = learner.hypothesis()
        if progress:
            progress(f"round {number + 1}: {len(machine.left_words)} left, {len(machine.right_words)} right states")
        wrong = list(counterexamples(machine))
        if not wrong:
            return machine
        learner.learn_from(machine, wrong)
    raise LearnError(f"pretokenizer: not learned within {_MAX_ROUNDS} rounds")


class _Learner:
    def __init__(self, ask: Ask, n_symbols: int) -> None:
        self._ask = ask
        self._symbols = [bytes([x]) for x in range(n_symbols)]
        self._known: dict[Word, bytes] = {b"": b""}
        self.left_tests = list(self._symbols)
        self.right_tests = list(self._symbols)

    def _marks(self, words: Iterable[Word]) -> dict[Word, bytes]:
        new = [w for w in dict.fromkeys(words) if w not in self._known]
        if new:
            self._known.update(zip(new, self._ask(new), strict=True))
        return self._known

    def hypothesis(self) -> Bimachine:
        left_words, left_next = self._close(self.left_tests, True)
        right_words, right_next = self._close(self.right_tests, False)
        known = self._marks(u + x + v for u in left_words for x in self._symbols for v in right_words)
        out = [[[known[u + x + v][len(u)] for v in right_words] for x in self._symbols] for u in left_words]
        return Bimachine(
            left_next, right_next, np.array(out, np.uint8), left_words, right_words, self.left_tests, self.right_tests
        )

    def _close(self, tests: list[Word], left: bool) -> tuple[list[Word], np.ndarray]:
        """States that the tests tell apart, breadth first, and their transitions."""

        def signatures(words: list[Word]) -> list[bytes]:
            if left:
                known = self._marks(w + t for w in words for t in tests)
                return [b"".join(known[w + t][len(w) :] for t in tests) for w in words]
            known = self._marks(t + w for w in words for t in tests)
            return [b"".join(known[t + w][: len(t)] for t in tests) for w in words]

        words = [b""]
        state_of = {signatures([b""])[0]: 0}
        rows: list[list[int]] = []
        while len(rows) < len(words):
            fresh = words[len(rows) :]
            longer = [w + x if left else x + w for w in fresh for x in self._symbols]
            states = []
            for word, signature in zip(longer, signatures(longer), strict=True):
                if signature not in state_of:
                    state_of[signature] = len(words)
                    words.append(word)
                states.append(state_of[signature])
            if len(words) > MAX_STATES:
                raise LearnError(f"pretokenizer: more than {MAX_STATES} {'left' if left else 'right'} states")
            n = len(self._symbols)
            rows += [states[i : i + n] for i in range(0, len(states), n)]
        return words, np.array(rows, np.uint8)

    def learn_from(self, machine: Bimachine, wrong: list[Word]) -> None:
        """Add the tests that the counterexamples reveal."""
        grown = False
        for word in wrong:
            grown |= self._reveal(machine, word)
        if not grown:
            raise LearnError("pretokenizer: the reference contradicts itself on a counterexample")

    def _reveal(self, machine: Bimachine, word: Word) -> bool:
        """Walk along a counterexample; True if it gave a new test."""
        truth, claim = self._marks([word])[word], machine.marks_of(word)
        at = next((i for i in range(len(word)) if truth[i] != claim[i]), -1)
        if at < 0:
            return False
        state = [0]
        for x in word[:at]:
            state.append(int(machine.left_next[state[-1], x]))
        mixed = [machine.left_words[q] + word[j:] for j, q in enumerate(state)]
        known = self._marks(mixed)
        marks = [known[m][at - len(word)] for m in mixed]
        for j in range(at):
            if marks[j] != marks[j + 1]:
                return _add(self.left_tests, word[j + 1 :])
        front = machine.left_words[state[at]] + word[at : at + 1]
        tail = word[at + 1 :]
        state = [0]
        for x in reversed(tail):
            state.append(int(machine.right_next[state[-1], x]))
        mixed = [front + tail[: len(tail) - j] + machine.right_words[q] for j, q in enumerate(state)]
        known = self._marks(mixed)
        marks = [known[m][len(front) - 1] for m in mixed]
        for j in range(len(tail)):
            if marks[j] != marks[j + 1]:
                return _add(self.right_tests, front + tail[: len(tail) - j - 1])
        return False


def _add(tests: list[Word], word: Word) -> bool:
    if word in tests:
        return False
    tests.append(word)
    return True


def merge_symbols(machine: Bimachine, fixed: Sequence[int]) -> tuple[Bimachine, list[int], np.ndarray]:
    """Merge symbols that no transition, no output and no value of `fixed` (one a symbol) tells apart.

    Returns (machine, kept symbols by new number, new number of every old symbol).
    """
    kept: list[int] = []
    number = np.zeros(machine.n_symbols, np.int64)
    seen: dict[tuple[bytes, bytes, bytes, int], int] = {}
    for x in range(machine.n_symbols):
        column = (
            machine.left_next[:, x].tobytes(),
            machine.right_next[:, x].tobytes(),
            machine.out[:, x].tobytes(),
            int(fixed[x]),
        )
        if column not in seen:
            seen[column] = len(kept)
            kept.append(x)
        number[x] = seen[column]

    def renamed(words: list[Word]) -> list[Word]:
        return list(dict.fromkeys(bytes(number[list(w)].astype(np.uint8)) for w in words))

    merged = Bimachine(
        machine.left_next[:, kept],
        machine.right_next[:, kept],
        machine.out[:, kept],
        renamed(machine.left_words),
        renamed(machine.right_words),
        renamed(machine.left_tests),
        renamed(machine.right_tests),
    )
    return merged, kept, number


def shrink_tests(machine: Bimachine) -> Bimachine:
    """Keep few tests that still tell all states of each side apart (greedy, short words first)."""
    left = [
        [machine.marks_of(u + t)[len(u) :] for u in machine.left_words]
        for t in sorted(machine.left_tests, key=lambda t: (len(t), t))
    ]
    right = [
        [machine.marks_of(t + v)[: len(t)] for v in machine.right_words]
        for t in sorted(machine.right_tests, key=lambda t: (len(t), t))
    ]
    return dataclasses.replace(
        machine,
        left_tests=_few(sorted(machine.left_tests, key=lambda t: (len(t), t)), left),
        right_tests=_few(sorted(machine.right_tests, key=lambda t: (len(t), t)), right),
    )


def _few(tests: list[Word], answers: list[list[bytes]]) -> list[Word]:
    states = len(answers[0]) if answers else 1
    chosen: list[int] = []
    groups = [0] * states
    while len(set(groups)) < states:
        best, best_groups = -1, groups
        for k, answer in enumerate(answers):
            number: dict[tuple[int, bytes], int] = {}
            split = [number.setdefault(pair, len(number)) for pair in zip(groups, answer, strict=True)]
            if max(split) > max(best_groups):
                best, best_groups = k, split
        if best < 0:
            raise LearnError("pretokenizer: two states that no test tells apart")
        chosen.append(best)
        groups = best_groups
    return [tests[k] for k in chosen]
