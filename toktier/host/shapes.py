"""Where the pieces of a short text begin, remembered by its shape.

The *shape* of a text is the string of its characters' symbols, one place a byte.  It alone decides about pieces, and a
few hundred shapes make up most of any text (` word`, ` Word,`, ` (word`), so pieces are mostly one dictionary look-up.

Many pre-tokenizers tell the letters of `'s`, `'ll`, `'ve` apart, which makes shapes many.  In a text without an
apostrophe they mean nothing: symbols that no automaton tells apart there are taken as one (`_Plain`).  Nor does it
matter there how long the word at the end is, beyond the first letters (`least_run`).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Sequence

import numpy as np

from toktier.host.cache import LONGEST_PIECE
from toktier.pretok.host_scan import piece_bounds
from toktier.pretok.tables import START, PretokTables

SHAPES = 1 << 14  # remembered at a time; full, they are forgotten together
_FEW = 32  # unknown shapes up to which plain Python is quicker than NumPy
_CONTINUED_BYTE = 0xFE  # in a shape: a byte that does not begin a character
_CONTINUED = chr(_CONTINUED_BYTE)

Pieces = tuple[bytes, ...]
Cutter = Callable[[bytes], Pieces]


class _SymbolText(dict):
    """Code point -> its place in a shape, for `str.translate`; filled as characters come."""

    def __init__(self, tables: PretokTables) -> None:
        super().__init__()
        self._tables = tables

    def __missing__(self, point: int) -> str:
        if len(self) >= SHAPES:
            self.clear()
        t = self._tables
        symbol = int(t.symbol[int(t.block[point >> 8]) * 256 + (point & 255)])
        text = self[point] = chr(symbol) + _CONTINUED * (len(chr(point).encode()) - 1)
        return text


class Shapes:
    """Cuts short texts into pieces; no character may be dropped.  Safe from any thread."""

    def __init__(self, tables: PretokTables) -> None:
        self._tables = tables
        first = int(tables.block[0]) * 256
        symbol = tables.symbol[first : first + 128].astype(np.uint8)
        self._of_ascii = symbol.tobytes() + bytes(128)
        self._of_point = _SymbolText(tables)
        self._known: dict[bytes | str, Cutter] = {}
        self._one_by_one = not tables.inner.any()
        n_right = len(tables.right_next)
        out, left, right = (a.astype(np.uint8).tobytes() for a in (tables.out, tables.left_next, tables.right_next))
        self._machine = tables.n_symbols, n_right, out, left, right
        # the mark whose absence makes most symbols equal
        alone = [c for c in b"'\"-/`_" if np.count_nonzero(symbol == symbol[c]) == 1]
        folds = {c: _Plain(tables, int(symbol[c])) for c in alone}
        best = min(alone, key=lambda c: len(np.unique(folds[c].fold)), default=None)
        plain = _Plain(tables, -1) if best is None else folds[best]
        self._apart = best is not None
        self._teller = b"\xff" if best is None else bytes([best])  # a boundary stands in no text
        self._told = "\xff" if best is None else chr(symbol[best])
        self._folded_ascii = plain.fold[symbol].astype(np.uint8).tobytes() + bytes(127) + b"\xff"
        self._fold = {k: chr(v) for k, v in enumerate(plain.fold.tolist())}
        letter = int(plain.fold[symbol[ord("a")]])
        self._run, self._wide_run, self._least = bytes([letter]), chr(letter) + _CONTINUED, plain.least_run(letter)

    def pieces(self, texts: Sequence[bytes]) -> list[Pieces]:
        """The pieces of each text, none of which is empty or holds a boundary."""
        run, least = self._run, self._least
        together = b"\xff".join(texts)
        plain = together.translate(self._folded_ascii).split(b"\xff")
        shapes: list[bytes | str] = [s[: len(s.rstrip(run)) + least] for s in plain]
        if not b"".join(texts).isascii():
            for k in [k for k, t in enumerate(texts) if not t.isascii()]:
                shapes[k] = self._wide_shape(texts[k])
        if self._apart and self._teller in together:
            for k in [k for k, t in enumerate(texts) if self._teller in t and t.isascii()]:
                shapes[k] = texts[k].translate(self._of_ascii)
        known = self._known
        if not (unknown := set(shapes).difference(known)):
            return [known[s](t) for s, t in zip(shapes, texts, strict=True)]
        texts_of = dict(zip(shapes, texts, strict=True))
        fresh = {s: texts_of[s] for s in unknown}
        cutters = map(self._cutter, fresh) if len(fresh) <= _FEW and self._one_by_one else self._cutters(fresh.values())
        found = dict(zip(fresh, cutters, strict=True))
        if len(known) + len(found) > SHAPES:
            self._known = dict(itertools.islice(found.items(), SHAPES))
            known = known | found  # a copy: others may be reading the old one
        else:
            known.update(found)
        return [known[s](t) for s, t in zip(shapes, texts, strict=True)]

    def _wide_shape(self, text: bytes) -> str:
        shape = text.decode().translate(self._of_point)
        if self._told in shape:
            return shape
        shape = shape.translate(self._fold)
        # what is stripped may begin with the end of another character; `least` letters are at most four times the bytes
        return shape[: len(shape.rstrip(self._wide_run)) + 4 * self._least + 3]

    def _cutter(self, shape: bytes | str) -> Cutter:
        """The automata, character by character."""
        symbols = shape if isinstance(shape, bytes) else shape.encode("latin-1")
        n, n_right, out, left_next, right_next = self._machine
        state, behind = 0, []
        for s in reversed(symbols):
            behind.append(state)
            if s != _CONTINUED_BYTE:
                state = right_next[state * n + s]
        state, starts = 0, []
        for at, s in enumerate(symbols):
            right = behind.pop()
            if s != _CONTINUED_BYTE:
                if out[(state * n + s) * n_right + right] == START:
                    starts.append(at)
                state = left_next[state * n + s]
        return _cutter_at(starts)

    def _cutters(self, texts: Collection[bytes]) -> list[Cutter]:
        starts, _ = piece_bounds(self._tables, np.frombuffer(b"\xff".join(texts), np.uint8))
        begins = np.cumsum([0, *(len(t) + 1 for t in texts)])
        counts = np.diff(np.searchsorted(starts, begins)).tolist()
        base = np.repeat(begins[:-1], counts)
        first = iter((starts - base).tolist())
        groups = [list(itertools.islice(first, n)) for n in counts]
        return [_cutter_at(g) for g in groups]


def _whole(text: bytes) -> Pieces:
    return (text,)


def _cutter_at(starts: list[int]) -> Cutter:
    """Cuts a text into the pieces that begin at `starts`; the last one goes on to its end, however long it is."""
    return operator.itemgetter(*map(slice, starts, [*starts[1:], None])) if len(starts) > 1 else _whole


class _Plain:
    """What symbols mean in texts without the symbol `absent`.

    Two states mean the same if `out` does not tell them apart and each symbol leads from them to states that mean the
    same; two symbols, if from every state they lead to such states and `out` is the same for both.

    Attributes:
      fold: int[S], for each symbol the first one that means the same.
    """

    def __init__(self, tables: PretokTables, absent: int) -> None:
        symbols = np.array([s for s in range(tables.n_symbols) if s != absent])
        left, right = tables.left_next[:, symbols], tables.right_next[:, symbols]
        lefts, rights = _reached(left), _reached(right)
        out = tables.out[np.ix_(lefts, symbols, rights)]
        left_class, right_class = np.zeros(len(left), np.intp), np.zeros(len(right), np.intp)
        left_class[lefts] = _numbers(out.reshape(len(lefts), -1))
        right_class[rights] = _numbers(out.transpose(2, 0, 1).reshape(len(rights), -1))
        for states, step, classes in ((lefts, left, left_class), (rights, right, right_class)):
            count = 0
            while count < (count := classes[states].max() + 1):
                classes[states] = _numbers(np.column_stack([classes[states], classes[step[states]]]))
        here = out.transpose(1, 0, 2).reshape(len(symbols), -1)
        leads = [left_class[left[lefts]].T, right_class[right[rights]].T]
        numbers = _numbers(np.concatenate([tables.inner[symbols][:, None], here, *leads], axis=1))
        self.fold = np.arange(tables.n_symbols)
        self.fold[symbols] = symbols[np.unique(numbers, return_index=True)[1][numbers]]
        self._tables, self._lefts, self._right_class = tables, lefts, right_class

    def least_run(self, symbol: int) -> int:
        """A length from which on a run of `symbol` at the end of a text cuts it as a longer one does.

        Let r[j] be the state of reading j of them from the end of the text.  From length k on nothing changes in front
        of the run if r[k] and r[k + 1] mean the same, nor at its first character if `out` is the same with r[k - 1] and
        r[k] behind it; and no later character of the run may start a piece, whatever is in front and behind.
        """
        t = self._tables
        behind = [0]
        for k in range(1, 5):
            behind.append(int(t.right_next[behind[-1], symbol]))
            further = int(t.right_next[behind[-1], symbol])
            first = t.out[self._lefts, symbol]
            inside = t.out[np.unique(t.left_next[self._lefts, symbol]), symbol]
            steady = self._right_class[behind[k]] == self._right_class[further]
            if steady and (first[:, behind[k - 1]] == first[:, behind[k]]).all() and not t.inner[symbol]:
                return k if not (inside[:, [*behind, further]] == START).any() else LONGEST_PIECE
        return LONGEST_PIECE


def _reached(step: np.ndarray) -> np.ndarray:
    """The states that some symbols lead to from state 0, ascending."""
    reached = {0}
    fresh = [0]
    while fresh:
        reached.update(fresh := [s for s in np.unique(step[fresh]).tolist() if s not in reached])
    return np.array(sorted(reached))


def _numbers(rows: np.ndarray) -> np.ndarray:
    """A number for each row, equal for equal rows, from 0 on."""
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
