"""From stored automata back to a bimachine with the words that a proof needs.

Stored tables hold transitions and outputs only.  Access words are shortest paths; test words come from the pairs of
states: two states differ at once if some output differs, and else if some symbol leads to two that do.
"""

from __future__ import annotations

import numpy as np

from toktier.errors import ToktierError
from toktier.pretok.learn import Bimachine, Word, shrink_tests
from toktier.pretok.tables import PretokTables


class ProofError(ToktierError, ValueError):
    """The tables are not what they claim to be; the message says where."""


def bimachine(tables: PretokTables) -> Bimachine:
    """The automata of the tables, with access words closed under beginnings (endings) and few test words.

    Raises:
      ProofError: a state that no word reaches, or two states that no word tells apart.
    """
    left = _access(tables.left_next, "left")
    right = [word[::-1] for word in _access(tables.right_next, "right")]
    machine = Bimachine(
        tables.left_next,
        tables.right_next,
        tables.out,
        left,
        right,
        _tests(tables.left_next, tables.out, right, "left"),
        _tests(tables.right_next, tables.out.transpose(2, 1, 0), left, "right"),
    )
    return shrink_tests(machine)


def _access(transitions: np.ndarray, side: str) -> list[Word]:
    """The first shortest word that leads to each state, symbols in the order in which the automaton reads them."""
    words: dict[int, Word] = {0: b""}
    fresh = [0]
    while fresh:
        reached = []
        for state in fresh:
            for x, target in enumerate(transitions[state].tolist()):
                if target not in words:
                    words[target] = words[state] + bytes([x])
                    reached.append(target)
        fresh = reached
    lost = set(range(len(transitions))) - set(words)
    if lost:
        raise ProofError(f"the {side} automaton has a state {min(lost)} that no text reaches")
    return [words[state] for state in range(len(transitions))]


def _tests(transitions: np.ndarray, out: np.ndarray, far: list[Word], side: str) -> list[Word]:
    """Words whose marks tell any two states of one side apart.

    Args:
      transitions: uint8[Q, S] of that side; out: [Q, S, Q'] as that side sees it; far: access words of the other side.
    """
    left = side == "left"
    states, symbols = transitions.shape
    found: dict[tuple[int, int], Word] = {}
    for p in range(states):
        for q in range(p):
            at = np.argwhere(out[p] != out[q])
            if len(at):
                x, r = min(at.tolist(), key=lambda pair: (len(far[pair[1]]), pair))
                found[q, p] = bytes([x]) + far[r] if left else far[r] + bytes([x])
    grown = True
    while grown:
        grown = False
        for p in range(states):
            for q in range(p):
                if (q, p) in found:
                    continue
                for x in range(symbols):
                    a, b = sorted((int(transitions[p, x]), int(transitions[q, x])))
                    if a != b and (a, b) in found:
                        rest = found[a, b]
                        found[q, p] = bytes([x]) + rest if left else rest + bytes([x])
                        grown = True
                        break
    if len(found) < states * (states - 1) // 2:
        raise ProofError(f"the {side} automaton has two states that no text tells apart")
    return list(dict.fromkeys(found.values()))
