"""A splitter as one pattern of the standard library's `re`, for short texts, where it is quicker than arrays.

The pattern is written over *symbols*: character k of the alphabet stands for the symbol k of the tables.  So it knows
nothing of Unicode, is a few hundred characters long, and can be compared with the automata on every word that a proof
asks for (`counterexamples`; docs/proofs.md).  `spelled` writes it out for code points, by the tables' own symbols:
equal on words of symbols is equal on texts.

Several splitters in a row become one pattern where all but the last cut out single characters or runs of one class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toktier.pretok.atoms import Atom, located
from toktier.pretok.failure import LearnError
from toktier.pretok.form import GPT2_PATTERN
from toktier.pretok.tables import INSIDE, START, PretokTables

if TYPE_CHECKING:  # an engine only spells a pattern out; what proves one is not its to load
    from toktier.pretok.learn import Bimachine, Word
    from toktier.pretok.verify import Plan

BMP = 0x10000  # code points below are the basic multilingual plane
_FIRST = 0xE000  # the character that stands for symbol 0; private, so no pattern's syntax
SYMBOLS = "\ue000-\ue0ff"  # the range of all of them
NOTHING = r"(?!)"
_NO_MARK = 0xFF
_SET = re.compile(rf"\[([{SYMBOLS}]+)\]")
_QUANTIFIER = re.compile(r"([*+?]|\{\d+(?:,\d*)?\})(\+?)(\??)")
_GROUP = re.compile(r"\(\?[a-zA-Z]*(?:-[a-zA-Z]+)?:")
_CAPTURES = re.compile(r"\((?!\?)")


class _Alternative(NamedTuple):
    """One alternative of a pattern and, where it is no more than one class with a quantifier, those."""

    text: str
    only: tuple[frozenset[int], str] | None


def derive(form: Any, tables: PretokTables) -> str:
    """The pattern of a normal form (toktier/pretok/form.py) over symbols, not proven yet; "" where there is none."""
    patterns = _patterns(form)
    if not patterns or tables.inner.any() or tables.drops or tables.n_symbols > 256:
        return ""
    try:
        return _derived(patterns, tables)
    except (LearnError, re.error):
        return ""


def spelled(written: str, tables: PretokTables, below: int = BMP) -> re.Pattern[str]:
    """The pattern for texts of code points below a number, without groups: `findall` gives the pieces.

    Takes 50 to 100 ms for the default, the plane in which `re` keeps sets as bits, and no time for ASCII (128).
    """
    label = labels(tables, below)

    def members(match: re.Match[str]) -> str:
        inside = "".join(rf"\U{a:08x}-\U{b - 1:08x}" for a, b in ranges(label, symbols_of(match[0])))
        return f"[{inside}]" if inside else NOTHING

    return re.compile(_SET.sub(members, without_groups(written)))


def without_groups(pattern: str) -> str:
    """The pattern with groups that capture nothing."""
    return _CAPTURES.sub("(?:", pattern)


def labels(tables: PretokTables, below: int) -> np.ndarray:
    """int64[below]: the symbol of each code point; -1 for surrogates, which no text holds."""
    label = tables.symbol.reshape(-1, 256)[tables.block[: -(-below // 256)]].reshape(-1)[:below].astype(np.int64)
    label[0xD800:0xE000] = -1
    return label


def ranges(label: np.ndarray, symbols: frozenset[int]) -> list[tuple[int, int]]:
    """The code points of some symbols as ranges, ends exclusive."""
    edges = np.flatnonzero(np.diff(np.isin(label, list(symbols)), prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def symbols_of(text: str) -> frozenset[int]:
    """The inverse of `class_of`."""
    return frozenset(k for c in text if 0 <= (k := ord(c) - _FIRST) < 256)


def class_of(symbols: frozenset[int]) -> str:
    """The class of some symbols as a pattern has it."""
    return f"[{''.join(chr(_FIRST + k) for k in sorted(symbols))}]" if symbols else NOTHING


def counterexamples(
    written: str,
    tables: PretokTables,
    machine: Bimachine,
    plan: Plan,
    progress: Callable[[str, int], None] | None = None,
) -> list[Word]:
    """Words of symbols that the pattern cuts otherwise than the tables; empty where it is proven equal.

    Args:
      machine: the automata of `tables`, with access words and tests.
      plan: extra states that the pattern may have.
      progress: called with the name of a set and the words of it that were asked.
    """
    finditer = re.compile(written).finditer
    return compare(lambda text: [m.span() for m in finditer(text)], tables, machine, plan, progress)


def compare(
    pieces: Callable[[str], list[tuple[int, int]]],
    tables: PretokTables,
    machine: Bimachine,
    plan: Plan,
    progress: Callable[[str, int], None] | None = None,
) -> list[Word]:
    """Words that a splitter of texts of symbols, given by the spans of its pieces, cuts otherwise than the tables."""
    from toktier.pretok.verify import Comparer

    alphabet = "".join(chr(_FIRST + k) for k in range(tables.n_symbols))
    return Comparer(_Box(pieces), alphabet).search(machine, plan, np.random.default_rng(11), 20_000, progress)


class _Box:
    """A function to be compared."""

    def __init__(self, pieces: Callable[[str], list[tuple[int, int]]]) -> None:
        self._pieces = pieces

    def marks(self, points: np.ndarray, guess: np.ndarray | None = None) -> np.ndarray:
        """Marks uint8[N, n] of N texts of n characters each, uint32[N, n]."""
        from toktier.pretok.blackbox import marks_from

        length = points.shape[1]
        texts = np.ascontiguousarray(points, np.uint32).tobytes().decode("utf-32-le")
        found = [self._pieces(texts[at : at + length]) for at in range(0, len(texts), length or 1)]
        # engines differ in how they go on behind an empty match, so a pattern with one is no splitter's
        rows = [np.full(length, _NO_MARK) if any(i == j for i, j in f) else marks_from(length, f) for f in found]
        return np.array(rows, np.uint8).reshape(points.shape)


def _derived(patterns: list[str], tables: PretokTables) -> str:
    rest = frozenset(range(tables.n_symbols))
    texts: list[str] = []
    for first in patterns[:-1]:  # what each cuts out, the last one splits further, and nothing reaches across
        (alternative, *others) = _alternatives(first, tables, rest)
        if others or alternative.only is None:
            return ""
        region, quantifier = alternative.only
        if quantifier == "+":
            texts += _split(patterns[-1], region, tables)
        elif quantifier and any(_matches(a, region) for a in _alternatives(patterns[-1], tables, region)):
            return ""  # it might cut the pieces of several characters further
        else:
            texts.append(alternative.text)
        rest -= region
    return "|".join([*texts, *_split(patterns[-1], rest, tables)])


def _split(pattern: str, region: frozenset[int], tables: PretokTables) -> list[str]:
    """Alternatives of a pattern that meets texts of some symbols only, what it does not match included."""
    main = _alternatives(pattern, tables, region)
    alone = frozenset(k for k in region if not any(_matches(a, frozenset({k})) for a in main))
    texts = [a.text for a in main]
    if alone:  # a run of what nothing matches is a piece, but for a last character that may begin a word
        from toktier.pretok.learn import Bimachine

        marks_of = Bimachine(tables.left_next, tables.right_next, tables.out, [], [], [], []).marks_of
        one = bytes([START, INSIDE])
        begins = [y for y in region - alone if all(marks_of(bytes([x, y])) == one for x in alone)]
        texts.append(f"{class_of(alone)}+(?!{class_of(frozenset(begins))})")
    return texts


def _matches(alternative: _Alternative, symbols: frozenset[int]) -> bool:
    """Does it match one of the symbols, standing alone?"""
    match = re.compile(alternative.text).fullmatch
    return any(match(chr(_FIRST + k)) for k in symbols)


def _patterns(form: Any) -> list[str]:
    """The patterns that are applied one after the other; none where a step is of another kind."""
    if form is None:
        return []
    if isinstance(form, dict):
        return [form["pattern"]]
    found: list[str] = []
    for number, step in enumerate(form):
        last = number == len(form) - 1
        if step["type"] == "Split" and "Regex" in step["pattern"]:
            isolated = step["behavior"] == "Isolated" and not step["invert"]
            if isolated or (last and step["behavior"] == "Removed" and step["invert"]):
                found.append(step["pattern"]["Regex"])
                continue
        if step["type"] == "Digits" and not last:
            found.append(r"\p{N}" if step["individual_digits"] else r"\p{N}+")
            continue
        if step["type"] == "ByteLevel" and step["use_regex"] and last:
            found.append(GPT2_PATTERN)
            continue
        return []
    return found


def _alternatives(pattern: str, tables: PretokTables, region: frozenset[int]) -> list[_Alternative]:
    """The alternatives of a pattern over symbols, classes as far as they lie in a region."""
    found, text = [], ""
    depth, only = 0, None
    for part in _parts(pattern):
        if isinstance(part, Atom):
            symbols = _members(part.pattern, tables) & region
            only = (symbols, "") if not text else None
            text += class_of(symbols)
        elif part == "|" and depth == 0:
            found.append(_Alternative(text, only))
            text, only = "", None
        else:
            depth += {"(": 1, ")": -1}.get(part[0], 0)
            # what comes first may end there, or be of another region
            part = part.replace(r"\Z", f"(?!{class_of(region)})")
            only = (only[0], part) if only and not only[1] and _QUANTIFIER.fullmatch(part) else None
            text += part
    return [*found, _Alternative(text, only)]


def _parts(pattern: str) -> Iterator[Atom | str]:
    """Atoms, and between them brackets, bars and quantifiers, without flags and possession."""
    for part in located(pattern):
        if isinstance(part, Atom):
            if not part.asserts:
                yield part
            elif part.source == "$":  # in some engines the end of a line, which the proof then shows
                yield r"\Z"
            else:
                raise LearnError(f"pattern: {part.source!r} looks at more than symbols")
            continue
        for piece in re.findall(r"\((?:\?(?:<?[=!>]|[a-zA-Z-]*:))?|[)|]|[^()|]+", part):
            if match := _QUANTIFIER.fullmatch(piece):
                yield match[1] + match[3]
            else:
                yield _GROUP.sub("(?:", piece).replace(r"\z", r"\Z")  # the one that `re` has for the end


def _members(atom: str, tables: PretokTables) -> frozenset[int]:
    """The symbols whose characters an atom matches, by the representative of each."""
    import regex

    try:
        match = regex.compile(atom, regex.V1).fullmatch
    except regex.error as error:
        raise LearnError(f"pattern: the atom {atom!r} is not understood ({error})") from error
    return frozenset(k for k, c in enumerate(tables.representatives) if match(c))
