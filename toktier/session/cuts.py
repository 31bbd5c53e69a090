"""Where a text may be cut so that its sides can be tokenized apart, decided from the characters beside the cut alone.

`CutRules.ok("xy")` says that for every text u x y v the ids of the whole are those of `u x` followed by those of `y v`:

* the pre-tokenizer is certified to start afresh between the symbols of x and y (`PretokTables.cut`);
* no added-token literal holds the two characters next to each other, so none can lie across the cut, and none whose
  match depends on its neighbours (`lstrip`, `rstrip`, `single_word`) can touch it in a way that matters;
* with a Unicode normalizer neither character can change, move or join with what is in front of it; there a third
  character is looked at, because what follows y might join with it;
* neither is half of a surrogate pair; where a space is put in front of a text, y is a space itself.

Because only these characters count, a cut stays a cut while text elsewhere changes.
"""

from __future__ import annotations

import functools
import json
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..pretok.tables import PretokTables
    from ..spec import AddedToken

_MEMO = 1 << 16  # decisions remembered before the memory is emptied
_STEPS = 48  # characters tried one by one before whole arrays are
FORMS = {"NFC", "NFD", "NFKC", "NFKD"}


class CutRules:
    """The local test for cuts of one tokenizer.

    Args:
      tables: the pre-tokenizer; None where nothing is certified, and then no place is a cut.
      added: the tokenizer's added tokens, whichever of them a call matches.
      normalizer: canonical JSON of the normalizer, `"null"` for none.  Anything but a Unicode form means no cuts.
    """

    def __init__(self, tables: PretokTables | None, added: tuple[AddedToken, ...], normalizer: str) -> None:
        form = normal_form(normalizer)
        self.form = form or ""
        self.width = 3 if form else 2
        self._tables = tables if form is not None else None
        contents = [a.content for a in added if a.content]
        if form:  # a literal may also be matched on the normalized text
            contents += [unicodedata.normalize(form, c) for c in contents]  # type: ignore[arg-type]
        self._inner = {c[i : i + 2] for c in contents for i in range(len(c) - 1)}
        self._lstrip = any(a.lstrip for a in added)
        self._rstrip = any(a.rstrip for a in added)
        self._word_first = {a.content[0] for a in added if a.single_word and a.content}
        self._word_last = {a.content[-1] for a in added if a.single_word and a.content}
        self._joins = _joining(form) if form else frozenset()
        self._memo: dict[str, bool] = {}
        self.possible = self._tables is not None and bool(self._tables.cut.any())

    def ok(self, around: str) -> bool:
        """May a text be cut behind `around[0]`?

        `around` holds the two characters beside the cut; with a normal form three, unless the text ends there.
        """
        if around[2:] and around[2] < "\x80":  # it changes nothing, and stands in few of the decisions remembered
            around = around[:2]
        known = self._memo.get(around)
        if known is None:
            if len(self._memo) >= _MEMO:
                self._memo.clear()
            known = self._memo[around] = self._decide(around)
        return known

    def last(self, text: str, high: int, low: int = 0) -> int:
        """The greatest c in (low, high] where `text` may be cut, else -1.  Needs 0 <= low, high < len(text)."""
        if not self.possible:
            return -1
        get, back, ahead = self._memo.get, 1, self.width - 1
        stop = max(low, high - _STEPS)
        c = high
        while c > stop:
            around = text[c - back : c + ahead]
            known = get(around)
            if known or (known is None and self.ok(around)):
                return c
            c -= 1
        size = 1024
        while c > low:
            start = max(low, c - size)
            for k in self._candidates(text[start : c + 1])[::-1].tolist():
                if self.ok(text[start + k - 1 : start + k + ahead]):
                    return start + k
            c, size = start, size * 4
        return -1

    def first(self, text: str, low: int, high: int | None = None) -> int:
        """The least c in [low, high) where `text` may be cut, else -1.  Needs low >= 1."""
        if not self.possible:
            return -1
        n = len(text) if high is None else min(high, len(text))
        get, ahead = self._memo.get, self.width - 1
        stop = min(n, low + _STEPS)
        c = low
        while c < stop:
            around = text[c - 1 : c + ahead]
            known = get(around)
            if known or (known is None and self.ok(around)):
                return c
            c += 1
        size = 1024
        while c < n:
            end = min(n, c + size)
            for k in self._candidates(text[c - 1 : end]).tolist():
                if self.ok(text[c + k - 2 : c + k - 1 + ahead]):
                    return c + k - 1
            c, size = end, size * 4
        return -1

    def steady(self, char: str) -> bool:
        """Is `char` left as it is by the normalizer, whatever stands in front of it?"""
        if not self.form or char < "\x80":
            return True
        if char in self._joins or unicodedata.combining(char):
            return False
        return unicodedata.category(char) != "Cn" and unicodedata.is_normalized(self.form, char)  # type: ignore[arg-type]

    def _candidates(self, text: str) -> np.ndarray:
        """Offsets k in 1..len-1 where the pre-tokenizer alone allows a cut between text[k-1] and text[k]."""
        tables = self._tables
        assert tables is not None
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        symbols = _symbols(tables, points)
        return np.flatnonzero(tables.cut[symbols[:-1], symbols[1:]]) + 1

    def _decide(self, around: str) -> bool:
        tables = self._tables
        if tables is None or len(around) < 2:
            return False
        x, y = around[0], around[1]
        if "\ud800" <= x <= "\udfff" or "\ud800" <= y <= "\udfff":
            return False
        block, symbol, p, q = tables.block, tables.symbol, ord(x), ord(y)
        a, b = symbol[int(block[p >> 8]) * 256 + (p & 255)], symbol[int(block[q >> 8]) * 256 + (q & 255)]
        if not tables.cut[a, b] or around[:2] in self._inner:
            return False
        if tables.prefix_space and y != " ":
            return False
        # str.isspace holds for every character that the reference takes for white space, and for a few more
        if (self._lstrip and x.isspace()) or (self._rstrip and y.isspace()):
            return False
        if x in self._word_last or y in self._word_first:
            return False
        return not self.form or all(map(self.steady, around))


def _symbols(tables: PretokTables, points: np.ndarray) -> np.ndarray:
    return tables.symbol[tables.block[points >> 8].astype(np.int64) * 256 + (points & 255)]


def normal_form(normalizer: str) -> str | None:
    """ "" for no normalizer, the name of a Unicode normal form, None for anything else."""
    kinds = set(_steps(json.loads(normalizer)))
    if not kinds:
        return ""
    kind = kinds.pop()
    return kind if kind in FORMS and not kinds else None


def _steps(normalizer: Any) -> list[str]:
    """The kinds of all steps, sequences unpacked."""
    if normalizer is None:
        return []
    if normalizer.get("type") == "Sequence":
        return [kind for step in normalizer.get("normalizers", ()) for kind in _steps(step)]
    return [normalizer.get("type")]


@functools.cache
def _joining(form: str) -> frozenset[str]:
    """Characters that can join with what stands in front of them, though their combining class is 0."""
    if not form.endswith("C"):
        return frozenset()
    seconds = {chr(c) for c in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))}
    for point in (*range(0xC0, 0x3400), *range(0xF900, 0x30000)):  # elsewhere nothing decomposes but Hangul
        parts = unicodedata.decomposition(chr(point))
        if parts and not parts.startswith("<"):
            seconds.update(chr(int(p, 16)) for p in parts.split()[1:])
    return frozenset(seconds)
