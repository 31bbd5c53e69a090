"""Sessions that do not keep their text (`keep_text=False`): all but its end is remembered by length and digest only.

An append needs the end of the text alone.  `update` brings the whole new text along, so whatever it shares with the old
one can be read from there: chunks are known to be the same by their digests, and what differs is replaced by whole
chunks, cut as ever where old and new text may both be cut.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import SpecialTokenError, TextNotKeptError
from . import forbidden
from .repair import Splice

if TYPE_CHECKING:
    from .chunks import ChunkList
    from .patch import Patch
    from .session import Session

KEPT = 2  # chunks at the end whose text stays
_BESIDE = 3  # chunks on either side of a change that are read from the new text
_NEAR = 8  # characters beside a change that a repair may look at


class Forgotten:
    """Stands for a chunk's text; equal to that text alone."""

    __slots__ = ("_digest", "_length")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self._length, self._digest = len(text), _digest(text)

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return len(other) == self._length and _digest(other) == self._digest
        return self is other

    def __sizeof__(self) -> int:
        return 128  # the object and its digest

    def __getitem__(self, place: Any) -> NoReturn:
        raise TextNotKeptError(
            "this part of the session's text is not kept (keep_text=False): give the whole new text to update(text), "
            "or open the session with keep_text=True"
        )

    def encode(self, *_: Any) -> NoReturn:
        """As `__getitem__`."""
        raise TextNotKeptError("the session's text is not kept (keep_text=False), so it cannot be written to a record")


def update(session: Session, text: str) -> Patch:
    """`Session.update` where the old text is partly forgotten; the session's lock is held by the caller."""
    chunks = session._chunks
    n = chunks.n_chars
    front = chunks.common_prefix(text)
    behind = chunks.common_suffix(text, min(n, len(text)) - front)
    stop = n - behind
    first, last = chunks.find(max(front - _NEAR, 0)) - 1, chunks.find(min(stop + _NEAR, n)) + 1
    if all(isinstance(c.text, str) for c in chunks.chunks[max(first, 0) : last + 1]):
        return session._edit(front, stop, text[front : len(text) - behind])
    try:
        return session._replace(_splice(session, text, front, stop))
    except SpecialTokenError as e:
        raise forbidden.refused(e, "the session's text would hold", text) from None


def forget(chunks: ChunkList, first: int, last: int) -> None:
    """Drop the text of chunks [first, last) and their neighbours, and of those that are no longer at the end."""
    end = len(chunks.chunks) - KEPT
    grown = last - first + _BESIDE
    for low, high in ((first - _BESIDE - 1, last + _BESIDE + 1), (end - grown - 1, end)):
        for k in range(max(low, 0), min(high, end)):
            chunk = chunks.chunks[k]
            if isinstance(chunk.text, str):
                chunks.retext(k, Forgotten(chunk.text))


def _splice(session: Session, text: str, front: int, stop: int) -> Splice:
    """Whole chunks from the one that holds `front` to the one before `stop` become their part of `text`."""
    chunks, engine = session._chunks, session._engine
    n, grown = chunks.n_chars, len(text) - chunks.n_chars
    k1 = chunks.find(front)
    k2 = k1
    while k2 < len(chunks) and chunks.before(k2)[0] < stop:
        k2 += 1
    if k2 == k1:  # nothing is taken out: what is put in lies between two chunks, or in the one that holds `front`
        k2 += chunks.before(k1)[0] < front
    low, high = max(k1 - _BESIDE, 0), min(k2 + _BESIDE, len(chunks))
    start, end = chunks.before(k1)[0], chunks.before(k2)[0]
    for k in (*range(low, k1), *range(k2, high)):
        at = chunks.before(k)[0] + (grown if k >= k2 else 0)
        chunks.retext(k, text[at : at + len(chunks.chunks[k].text)])
    c1 = _left(chunks, engine.rules, low, k1, text[start : start + 2])
    c2 = n if c1 < 0 else _right(chunks, engine.rules, k2, high, text[max(end + grown - 1, 0) : end + grown])
    if c1 < 0 or c2 < 0:
        c1, c2 = 0, n
    window = text[c1 : c2 + grown]
    path = "full" if c1 == 0 and c2 == n else "certified"
    try:
        encoded = engine.encode(window, c1 > 0)
    except BaseException:  # nothing changes, and what was read from the new text is let go again
        forget(chunks, k1, k2)
        raise
    return Splice(c1, c2, window, encoded, path, 0)


def _left(chunks: ChunkList, rules: Any, low: int, k1: int, new: str) -> int:
    """The last cut at or before chunk k1, -1 where none is found in the chunks from `low` on.

    Chunk k1 begins where the old text may be cut; `new` are the characters behind that place in the new text.
    """
    base, start = chunks.before(low)[0], chunks.before(k1)[0]
    text, ahead = "".join([c.text for c in chunks.chunks[low:k1]]), rules.width - 1
    if not text or not new or rules.ok(text[-1] + new[:ahead]):
        return start
    at = rules.last(text, len(text) - 2) if len(text) > 2 else -1
    if at > 0:
        return base + at
    return 0 if low == 0 else -1


def _right(chunks: ChunkList, rules: Any, k2: int, high: int, new: str) -> int:
    """The first cut at or behind chunk k2, -1 where none is found before chunk `high`; `new`: the character before."""
    base = chunks.before(k2)[0]
    text, ahead = "".join([c.text for c in chunks.chunks[k2:high]]), rules.width - 1
    if not text or not new or rules.ok(new + text[:ahead]):
        return base
    at = rules.first(text, 1, len(text) - ahead + 1) if len(text) > ahead else -1
    if at > 0:
        return base + at
    return base + len(text) if high == len(chunks) else -1


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
