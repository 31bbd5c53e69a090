"""A splitter's pattern without look-ahead, for compiled engines of regular expressions, which are quick with such only.

An engine that runs a pattern as an automaton takes some nanoseconds a byte; one that looks ahead has to backtrack.
The production patterns look ahead in one way only: `\\s+(?!\\S)` leaves the last blank of a run to the word behind it.
Three characters tell which blank that is, so a *seam*, a character that no class holds, is put in front of it first:

    "a   b"  ->  "a  \\0 b"  ->  "a", "  ", " b"

Both parts are derived from the pattern over symbols (`written.py`) and, like it, proven against the automata on every
word that a proof asks for, by the standard library's `re`.  `SeamedText` writes them out in the syntax that `re` and
Rust's `regex` read alike: classes of ranges, greedy quantifiers, first alternative first.  It leaves out most scripts
of three bytes a character, whose classes make an automaton outgrow its cache; Hangul is in.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toktier.pretok.tables import PretokTables
from toktier.pretok.written import NOTHING, SYMBOLS, class_of, compare, labels, ranges, symbols_of, without_groups

if TYPE_CHECKING:
    from toktier.pretok.learn import Bimachine, Word
    from toktier.pretok.verify import Plan

# UTF-8 of code points below U+0800 and from U+2000, U+A000 and U+F000 to U+2FFF, U+DFFF and U+3FFFF; last, the seam
BYTES = bytes(range(1, 0xE0)) + b"\xe2\xea\xeb\xec\xed\xef\xf0\0"
SEAM = "\0"  # between pieces; a text that holds it is not for the pattern
_SET = rf"(?:\[[{SYMBOLS}]+\]|{re.escape(NOTHING)})"
_LEAVES = re.compile(rf"({_SET})\+\(\?!({_SET})\)")  # a run that leaves its last character to what follows
_ENDS = re.compile(rf"({_SET})\*({_SET})\+?")  # a run up to its last character of a kind
_SEAM_SYMBOL = "\ue100"  # stands for the seam among symbols
_FEW = 64  # characters that are looked for one by one
_PAIRED = 8  # characters of a text of which each pair has a pattern of its own, which takes some ms to make
_NO_CLASS = r"[^\x{0}-\x{10FFFF}]"


class Rule(NamedTuple):
    """A seam goes between two characters of the class `run` where one of `behind` follows; symbols."""

    run: frozenset[int]
    behind: frozenset[int]


class Seamed(NamedTuple):
    """The pattern over symbols, and where seams go.  `str` of it is what is stored once it is proven."""

    pattern: str
    rules: tuple[Rule, ...]

    def __str__(self) -> str:
        return "\n".join([self.pattern, *(class_of(r.run) + class_of(r.behind) for r in self.rules)])


def derive(written: str, n_symbols: int) -> Seamed | None:
    """The pattern of `written.derive` without look-ahead, not proven yet; None where it looks ahead in another way."""
    if not written:
        return None
    alternatives = _alternatives(written)
    everything = frozenset(range(n_symbols))
    texts: list[str] = []
    rules: list[Rule] = []
    for alternative in alternatives:
        if match := _LEAVES.fullmatch(alternative):
            run, behind = symbols_of(match[1]), symbols_of(match[2])
            if behind == everything:
                texts.append(rf"{match[1]}+\Z")
                continue
            if run & behind:
                return None
            ends = [symbols_of(e[2]) for a in alternatives if (e := _ENDS.fullmatch(a)) and symbols_of(e[1]) == run]
            rules.append(Rule(run.difference(*ends), behind))  # another alternative takes runs up to such an end whole
            texts.append(f"{match[1]}+")
        elif "(?" in alternative.replace(NOTHING, "").replace("(?:", ""):
            return None
        else:
            texts.append(alternative)
    rules = [r for r in rules if r.run and r.behind]
    for r, later in itertools.combinations(rules, 2):
        if r.run & later.run and r.run & later.behind:
            return None  # a seam of the one would stand where the other looks for what follows
    return Seamed("|".join(texts), tuple(rules))


def counterexamples(
    seamed: Seamed,
    tables: PretokTables,
    machine: Bimachine,
    plan: Plan,
    progress: Callable[[str, int], None] | None = None,
) -> list[Word]:
    """Words of symbols that seams and pattern cut otherwise than the tables; as `written.counterexamples`."""
    return compare(_pieces(seamed), tables, machine, plan, progress)


def proven(tables: PretokTables) -> Seamed | None:
    """What the stored tables say is proven, if it is what is derived now."""
    seamed = derive(tables.written, tables.n_symbols) if tables.seamed else None
    return seamed if str(seamed) == tables.seamed else None


class SeamedText:
    """A proven pattern and its seams, written out for texts of `BYTES`.

    Attributes:
      pattern: for an engine without look-around; its matches in a text with seams are the pieces.
      ends: does it tell the end of the text from a seam?
    """

    def __init__(self, seamed: Seamed, tables: PretokTables) -> None:
        label = labels(tables, 0x110000)
        label[0] = -1  # the seam
        for outside in ((0x800, 0x2000), (0x3000, 0xA000), (0xE000, 0xF000), (0x40000, 0x110000)):
            label[slice(*outside)] = -1

        def spelled(symbols: frozenset[int], code: str, nothing: str) -> str:
            inside = "".join(f"{code.format(a)}-{code.format(b - 1)}" for a, b in ranges(label, symbols))
            return f"[{inside}]" if inside else nothing

        def compiled(match: re.Match[str]) -> str:
            return spelled(symbols_of(match[0]), r"\x{{{:x}}}", _NO_CLASS)

        self.pattern = re.sub(_SET, compiled, without_groups(seamed.pattern)).replace(r"\Z", r"\z")
        self.ends = r"\z" in self.pattern
        self._rules = []
        for run, behind in seamed.rules:
            characters = "".join(map(chr, np.flatnonzero(np.isin(label, list(run))).tolist()))
            narrow = "".join(c for c in characters if c.isascii())
            spelling, follows = (spelled(symbols, r"\U{:08x}", NOTHING) for symbols in (run, behind))
            self._rules.append((frozenset(characters), narrow, spelling, follows))
        self._subs: dict[tuple[str, str, int], Callable[[str, str], str]] = {}

    def sew(self, text: str) -> str:
        """The text with its seams.  A literal beginning is what `re` finds soonest, hence one pattern for each pair."""
        for k, (run, narrow, _, _) in enumerate(self._rules):
            few = narrow if text.isascii() else run
            here = [c for c in few if c in text] if len(few) <= _FEW else run.intersection(text)
            if len(here) > (_PAIRED if len(run) <= _FEW else 0):
                text = self._sub("", "", k)(rf"\g<0>{SEAM}", text)
                continue
            for a in here:
                for b in here:
                    if a + b in text:
                        text = self._sub(a, b, k)(f"{a}{SEAM}{b}".replace("\\", r"\\"), text)
        return text

    def _sub(self, a: str, b: str, rule: int) -> Callable[[str, str], str]:
        """What replaces two characters of a run that a word follows; of any two, the first, where none are named."""
        sub = self._subs.get((a, b, rule))
        if sub is None:
            _, _, run, behind = self._rules[rule]
            pattern = f"{re.escape(a + b)}(?={behind})" if a else f"{run}(?={run}{behind})"
            sub = self._subs[a, b, rule] = re.compile(pattern).sub
        return sub


def _alternatives(written: str) -> list[str]:
    """The alternatives of the whole pattern."""
    found, depth = [""], 0
    for part in re.split(r"([|()])", written):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and not depth:
            found.append("")
        else:
            found[-1] += part
    return found


def _pieces(seamed: Seamed) -> Callable[[str], list[tuple[int, int]]]:
    """The spans of the pieces of a text of symbols."""
    finditer = re.compile(seamed.pattern).finditer
    rules = [f"(?<={class_of(r.run)})(?={class_of(r.run)}{class_of(r.behind)})" for r in seamed.rules]
    sew = re.compile("|".join(rules) or NOTHING).sub

    def pieces(text: str) -> list[tuple[int, int]]:
        sewn = sew(_SEAM_SYMBOL, text)
        before = np.cumsum([0] + [c == _SEAM_SYMBOL for c in sewn]).tolist()
        return [(i - before[i], j - before[j]) for i, j in (m.span() for m in finditer(sewn))]

    return pieces
