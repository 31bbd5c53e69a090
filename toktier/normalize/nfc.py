"""NFC as the reference does it, near the few places where it does anything.

The reference (`tokenizers`) composes with Unicode tables that are older than Python's, so `unicodedata` is not exact.
Its tables are probed out of it (`probe`): one byte a code point, its *kind*:

* 0, *apart*: combining class 0, NFC leaves it alone, it never composes with what stands before it, and neither does
  what it decomposes to.  NFC(u + v) = NFC(u) + NFC(v) wherever v begins with such a character.
* 1 to 127, a mark that keeps its form; the number orders marks by their combining class.
* 128 or more, *attention*: NFC changes it alone, or it may compose with what stands before it.

A text changes only around a character that needs attention or a mark that is out of order behind another, so one look
at each character and its neighbour finds every place where NFC may act.  There the whole run of characters that
are not apart, with the one in front, goes through the reference's own normalizer; this looks back as far as NFC does.
"""

from __future__ import annotations

import functools
import importlib.resources
import io
import itertools
from collections.abc import Callable, Iterable

import numpy as np

ATTENTION = 128
BLOCK = 1 << 20  # characters looked at a time: bounds the memory of the scan
DENSE = 12  # more than one stretch in so many characters: the whole block goes through the reference in one call
# Noncharacters, apart and inert; one that the text lacks can stand for a boundary inside the reference's normalizer.
_NONCHARACTERS = [chr(c) for c in (*range(0xFDD0, 0xFDF0), *(p << 16 | e for p in range(17) for e in (0xFFFE, 0xFFFF)))]
_BOUNDARY = "\udcff"


class Tables:
    """The kinds of all code points, and NFC with them.

    Args:
      kind: uint8[0x110000], see the module.
      whole: the reference's NFC on a str.
    """

    def __init__(self, kind: np.ndarray, whole: Callable[[str], str]) -> None:
        self.kind = kind
        self._whole = whole

    def starts_apart(self, char: str) -> bool:
        """Whether text may be cut in front of this character."""
        return self.kind[ord(char)] == 0

    def unchanged(self, text: str) -> bool:
        """True if NFC changes no substring of the text (a false answer may still mean that nothing changes)."""
        for start in range(0, len(text), BLOCK):
            kind = self._kinds(text[max(start - 1, 0) : start + BLOCK])
            if _places(kind).any():
                return False
        return True

    def normalized(self, text: str) -> str:
        """The text with each segment between U+DCFF in NFC; the U+DCFF stay."""
        out: list[str] = []
        start = 0
        while start < len(text):
            stop = min(start + BLOCK, len(text))
            while stop < len(text) and self.kind[ord(text[stop])]:
                stop += 1
            out.append(self._block(text[start:stop]))
            start = stop
        return out[0] if len(out) == 1 else "".join(out)

    def _block(self, text: str) -> str:
        kind = self._kinds(text)
        places = np.flatnonzero(_places(kind))
        if not len(places):
            return text
        starts, stops = _runs(kind, places)
        if len(starts) * DENSE > len(text):
            return self._segments(text)
        # Newlines and boundaries compose with nothing: a stretch does not begin with one, and newlines can join them.
        stretches, kept, done = [], [], 0
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            if start and text[start - 1] not in ("\n", _BOUNDARY):
                start -= 1
            kept.append(text[done:start])
            stretches.append(text[start:stop])
            done = stop
        changed = self._whole("\n".join(stretches)).split("\n")
        return "".join([p for pair in zip(kept, changed, strict=True) for p in pair]) + text[done:]

    def _segments(self, text: str) -> str:
        """All segments of a text in one call of the reference."""
        if _BOUNDARY not in text:
            return self._whole(text)
        stand_in = next((c for c in _NONCHARACTERS if c not in text), None)
        if stand_in is None:
            return _BOUNDARY.join(map(self._whole, text.split(_BOUNDARY)))
        return self._whole(text.replace(_BOUNDARY, stand_in)).replace(stand_in, _BOUNDARY)

    def _kinds(self, text: str) -> np.ndarray:
        return self.kind[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]


def _places(kind: np.ndarray) -> np.ndarray:
    """bool[n]: characters that need attention, or marks of a lower class than the character before them."""
    found = kind >= ATTENTION
    found[1:] |= (kind[1:] != 0) & (kind[1:] < kind[:-1])
    return found


def _runs(kind: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and stop of each maximal run of characters that are not apart and that holds one of the places."""
    edges = np.diff((kind != 0).astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    chosen = np.unique(np.searchsorted(starts, places, side="right") - 1)
    return starts[chosen], stops[chosen]


@functools.cache
def tables() -> Tables:
    """The tables of the installed reference: from the package where they are known to hold, else probed and cached."""
    import tokenizers

    whole = tokenizers.normalizers.NFC().normalize_str
    kind = _packaged(tokenizers.__version__)
    if kind is None:
        from toktier import cache

        stored = cache.get("nfc", tokenizers.__version__)
        if stored is None:
            kind = probe()
            cache.put("nfc", tokenizers.__version__, dict(zip(("at", "values"), pack(kind), strict=True)))
        else:
            kind = unpack(stored["at"], stored["values"])
    return Tables(kind, whole)


def _packaged(version: str) -> np.ndarray | None:
    """The table in the package, if it was probed out of this version of the reference."""
    raw = importlib.resources.files("toktier").joinpath("data/nfc.npz").read_bytes()
    with np.load(io.BytesIO(raw)) as stored:
        return unpack(stored["at"], stored["values"]) if version in stored["versions"].tolist() else None


def pack(kind: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The kinds as (at: int32[k] code points, values: uint8[k]), without the zeros."""
    at = np.flatnonzero(kind).astype(np.int32)
    return at, kind[at]


def unpack(at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Inverse of `pack`: uint8[0x110000]."""
    kind = np.zeros(0x110000, np.uint8)
    kind[at] = values
    return kind


def probe() -> np.ndarray:
    """Kinds of all code points, read out of the installed reference in a few seconds.

    What is relied on is the algorithm (decompose, sort each run of marks stably by class, compose), not its tables.
    """
    import tokenizers

    nfc, nfd = tokenizers.normalizers.NFC().normalize_str, tokenizers.normalizers.NFD().normalize_str

    def each(form: Callable[[str], str], texts: Iterable[str]) -> list[str]:
        return form("\n".join(texts)).split("\n")

    chars = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and c != 0x0A]
    composed, decomposed = each(nfc, chars), each(nfd, chars)
    attention = {c for c, n in zip(chars, composed, strict=True) if n != c}
    # U+0345 has the highest class and U+0334 the lowest, and so they change places; a mark between them lets them
    # do so, anything else keeps them apart.  What decomposes is judged by what it decomposes to.
    high, low = "\u0345", "\u0334"
    if nfd(f"x{high}{low}") != f"x{low}{high}":
        raise AssertionError("the reference does not order U+0345 and U+0334 as Unicode does")
    plain = [c for c, d in zip(chars, decomposed, strict=True) if d == c]
    around = each(nfd, [f"x{high}{c}{low}" for c in plain])
    marks = [c for c, a in zip(plain, around, strict=True) if a != f"x{high}{c}{low}"]
    ordered = nfd("x" + "".join(marks))[1:]
    swapped = each(nfd, [f"x{b}{a}" for a, b in itertools.pairwise(ordered)])
    rank = {ordered[0]: 1}
    for (a, b), s in zip(itertools.pairwise(ordered), swapped, strict=True):
        rank[b] = rank[a] + (s != f"x{b}{a}")
    if max(rank.values()) >= ATTENTION:
        raise AssertionError("more combining classes than a table entry holds")
    # A character composes with what stands before it if it is not the first in the decomposition of a composite.
    for c, n, d in zip(chars, composed, decomposed, strict=True):
        if n == c != d:
            attention.update(d[1:])
    apart = attention | rank.keys()
    attention |= {c for c, d in zip(chars, decomposed, strict=True) if d != c and d[0] in apart}
    kind = np.zeros(0x110000, np.uint8)
    for c, r in rank.items():
        kind[ord(c)] = r
    kind[[ord(c) for c in attention]] |= ATTENTION
    return kind


def save(path: str) -> None:
    """Writes the packaged table: `python -c "from toktier.normalize import nfc; nfc.save('toktier/data/nfc.npz')"`."""
    import tokenizers

    at, values = pack(probe())
    np.savez_compressed(path, at=at, values=values, versions=np.array([tokenizers.__version__]))
