"""The atoms of a pattern: its parts that match one character each.

Two code points that every atom of a pattern treats alike cannot be told apart by the pattern, so the atoms' answers are
the symbol classes.  A bracket expression is one atom as a whole, whatever it holds, which keeps the classes few.  The
parser only needs to know where atoms begin and end and which flags are in force; what they mean is asked of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from toktier.pretok.failure import LearnError

_QUANTIFIER = re.compile(r"[*+?]|\{\d+(,\d*)?\}|\{,\d+\}")
_GROUP = re.compile(
    r"\?(?:<?[=!]|[:>|]|P?<[A-Za-z_]\w*>|#[^)]*|(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)]))"
)
_ESCAPE = re.compile(
    r"\\(?:[pP](?:\{[^}]*\}|\w)|x\{[0-9A-Fa-f ]+\}|x[0-9A-Fa-f]{1,2}|u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}"
    r"|0[0-7]{0,2}|.)",
    re.DOTALL,
)
_ASSERTIONS = {"A": (), "z": (), "Z": ("\\n",), "b": ("\\w",), "B": ("\\w",)}
_REFUSED = {c: "a back reference" for c in "123456789kg"} | {
    "R": "a line break sequence", "X": "a grapheme cluster", "K": "a kept-out prefix", "G": "a search anchor",
    "y": "a text segment boundary", "Y": "a text segment boundary", "Q": "a quoted literal", "E": "a quoted literal",
}  # fmt: skip


class Atom(NamedTuple):
    """One atom: its pattern with flags, the character it stands for if it is a literal, whether it follows the last.

    `source` is its own text, from `start` on; `asserts` where it only looks at the character.
    """

    pattern: str
    literal: str
    follows: bool
    source: str
    start: int
    asserts: bool


def atoms(pattern: str) -> list[str]:
    """Patterns of one character each, with their flags, whose answers fix how `pattern` treats a code point.

    Raises `LearnError` for constructs whose matching depends on more than such classes (back references, `\\X`, ...).

    >>> atoms("(?i:'s)|[a-z&&[^q]]+(?!\\\\S)$")
    ["(?i:')", '(?i:s)', '(?:[a-z&&[^q]])', '(?:\\\\S)', '(?:\\\\n)']
    """
    return list(dict.fromkeys(atom.pattern for atom in _scan(pattern)))


def literals(pattern: str) -> list[str]:
    """Strings of two or more literal characters in a row, which random texts would hardly hit.

    >>> literals("<stop>|'(?:re|ve)[a-z]")
    ['<stop>', 're', 've']
    """
    runs = [""]
    for atom in _scan(pattern):
        if not atom.follows or not atom.literal:
            runs.append("")
        runs[-1] += atom.literal
    return list(dict.fromkeys(run for run in runs if len(run) > 1))


def located(pattern: str) -> Iterator[Atom | str]:
    """The atoms of a pattern and the text between them, in order; an assertion is one atom.

    >>> [part if isinstance(part, str) else part.pattern for part in located("(?i:'s)|[a-z]+$")]
    ['(?i:', "(?i:')", '(?i:s)', ')|', '(?:[a-z])', '+', '(?:\\n)']
    """
    at = 0
    for atom in _scan(pattern):
        if atom.start < at:  # an assertion about several classes
            continue
        if atom.start > at:
            yield pattern[at : atom.start]
        yield atom
        at = atom.start + len(atom.source)
    if at < len(pattern):
        yield pattern[at:]


def _scan(pattern: str) -> Iterator[Atom]:
    """All atoms in order."""
    flags: set[str] = set()
    stack: list[set[str]] = []
    at, last = 0, -1

    def atom(text: str, end: int, literal: str = "", asserts: bool = False) -> Atom:
        nonlocal last
        follows, last = at == last, end
        return Atom(f"(?{''.join(sorted(flags))}:{text})", literal, follows, pattern[at:end], at, asserts)

    while at < len(pattern):
        c = pattern[at]
        if c == "(":
            stack.append(set(flags))
            at += 1
            if pattern[at : at + 1] == "?":
                match = _GROUP.match(pattern, at)
                if match is None:
                    raise LearnError(f"pattern: unknown group at offset {at} of {pattern!r}")
                if match["on"] is not None:
                    flags = (flags | set(match["on"])) - set(match["off"] or "")
                    if "x" in flags:
                        raise LearnError(f"pattern: free spacing (?x) at offset {at} of {pattern!r} is not supported")
                    if match["end"] == ")":  # flags until the end of the group that we stand in
                        stack.pop()
                at = match.end()
        elif c == ")":
            if not stack:
                raise LearnError(f"pattern: ')' without '(' at offset {at} of {pattern!r}")
            flags = stack.pop()
            at += 1
        elif c == "|":
            at += 1
        elif c in "^$":
            yield atom("\\n", at + 1, asserts=True)
            at += 1
        elif c == "[":
            end = _set_end(pattern, at)
            yield atom(pattern[at:end], end)
            at = end
        elif c == "\\":
            match = _ESCAPE.match(pattern, at)
            if match is None:
                raise LearnError(f"pattern: lone backslash at offset {at} of {pattern!r}")
            kind = pattern[at + 1]
            if kind in _REFUSED:
                raise LearnError(f"pattern: {_REFUSED[kind]} at offset {at} of {pattern!r} is not supported")
            for text in _ASSERTIONS.get(kind, (match.group(),)):
                yield atom(text, match.end(), "" if kind.isalnum() else kind, kind in _ASSERTIONS)
            at = match.end()
        elif match := _QUANTIFIER.match(pattern, at):
            at = match.end()
        else:
            plain = c == "." or c.isalnum() or ord(c) > 127 or c.isspace()
            yield atom(c if plain else re.escape(c), at + 1, "" if c == "." else c)
            at += 1


def _set_end(pattern: str, start: int) -> int:
    """Offset behind the bracket expression that begins at `start`; brackets nest."""
    depth, at = 0, start
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            at += 1
        elif c == "[":
            depth += 1
            if pattern[at + 1 : at + 2] == "^":
                at += 1
            if pattern[at + 1 : at + 2] == "]":  # a first ']' is a member
                at += 1
        elif c == "]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise LearnError(f"pattern: unclosed '[' at offset {start} of {pattern!r}")
