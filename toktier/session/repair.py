"""Where a change may be spliced in: the two acceptance modes of a repair.

A session holds text T and replaces T[start:stop] by `text`.  Both modes return a `Splice`: characters [c1, c2) of the
old text are replaced by a window that was tokenized on its own, and everything outside keeps its tokens.

*Certified* takes the nearest places where old and new text may both be cut (`cuts.CutRules`); they need no further
evidence.  *Checked* is the protocol of comparing: a window of 512 characters on both sides is tokenized, and a run of
records equal in position and id is accepted where it has two tokens or more, is longer than the longest token and holds
such a cut; else the window doubles, five times, and then the whole text is tokenized.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from .chunks import ChunkList
from .cuts import CutRules

WINDOW = 512  # characters that the checked mode looks back (and ahead)
DOUBLINGS = 5


class Encoded(NamedTuple):
    """Ids of a text, the exclusive end of each in normalized UTF-8 bytes, and the number of those bytes."""

    ids: np.ndarray
    ends: np.ndarray
    n_bytes: int


class WindowEngine(Protocol):
    """What a repair asks of a tokenizer."""

    rules: CutRules
    longest: int  # bytes of the longest token
    digest: str  # of the tokenizer's spec
    reason: str  # why every change encodes the whole text, or ""
    mode: Any  # what becomes of special tokens in the text
    framed: bool  # does the post-processor add ids around those of the text?
    frame: tuple[np.ndarray, np.ndarray]  # those ids

    def encode(self, text: str, continued: bool = False) -> Encoded:
        """Ids of `text` on its own; `continued`: it follows other text, so no space is put in front of it."""
        ...

    def measure(self, text: str) -> int:
        """UTF-8 bytes of the normalized text."""
        ...

    def token_bytes(self, ids: np.ndarray) -> list[bytes]:
        """The bytes of each token; InputError for an id that the tokenizer does not have."""
        ...


class Change(NamedTuple):
    """T[start:stop] becomes `text`, with the few characters beside it that decide about cuts.

    `lead` and `tail` are the characters before `start` and from `stop` on, `after` those of the old text from `start`
    on, `before` the one of the old text before `stop`; none of them reaches across ids given by the caller.
    """

    start: int
    stop: int
    text: str
    lead: str
    tail: str
    after: str
    before: str


class Splice(NamedTuple):
    """Characters [c1, c2) of the old text, and what their new text is in tokens."""

    c1: int
    c2: int
    window: str
    encoded: Encoded
    path: str
    widened: int


def describe(chunks: ChunkList, start: int, stop: int, text: str) -> Change:
    """The change with its neighbourhood."""
    n = chunks.n_chars
    low, high, mid_high, mid_low = max(0, start - 3), min(n, stop + 3), min(n, start + 3), max(0, stop - 1)
    if chunks.n_given:
        low, mid_high = chunks.floor(start, low), chunks.ceiling(start, mid_high)
        high, mid_low = chunks.ceiling(stop, high), chunks.floor(stop, mid_low)
    return Change(
        start,
        stop,
        text,
        chunks.slice(low, start),
        chunks.slice(stop, high),
        chunks.slice(start, mid_high),
        chunks.slice(mid_low, stop),
    )


def left_cut(chunks: ChunkList, rules: CutRules, change: Change) -> int:
    """The last place at or before the change where both the old and the new text may be cut."""
    start, ahead = change.start, rules.width - 1
    back = beside(rules, change.lead, change.after, (change.text[:2] + change.tail[:2])[:2])
    if back >= 0:
        return start - back
    c = start - 2
    k = chunks.find(c)
    base = chunks.before(k)[0]
    text = chunks.chunks[k].text
    if c - base + ahead > len(text):
        text = chunks.slice(base, c + ahead)
    at = rules.last(text, c - base)
    return base + max(at, 0)  # a chunk starts where the text may be cut


def beside(rules: CutRules, lead: str, after: str, new: str) -> int:
    """How many characters before a change old and new text may both be cut, if that is up to their first few; else -1.

    Args:
      lead: up to three characters before the change.  after, new: up to three of the old and two of the new text there.
    """
    ahead = rules.width - 1
    if not lead:  # the text begins here, or ids given by the caller end here
        return 0
    if _both(rules, lead[-1:], after[:ahead], new[:ahead]):
        return 0
    if len(lead) == 1:
        return 1
    if ahead == 2:
        if _both(rules, lead[-2:], after[:1], new[:1]):
            return 1
    elif rules.ok(lead[-2:]):
        return 1
    return 2 if len(lead) == 2 else -1


def right_cut(chunks: ChunkList, rules: CutRules, change: Change) -> int:
    """The first place at or behind the change where both the old and the new text may be cut."""
    stop, tail, ahead = change.stop, change.tail, rules.width - 1
    if not tail:
        return stop
    new = (change.lead[-1:] + change.text[-1:])[-1:]
    if (not change.before or rules.ok(change.before + tail[:ahead])) and (not new or rules.ok(new + tail[:ahead])):
        return stop
    k = chunks.find(stop)
    base = chunks.before(k)[0]
    text = chunks.chunks[k].text
    end = len(text)
    if stop + 1 - base >= end:
        return base + end
    if ahead == 2 and k + 1 < len(chunks) and not chunks.chunks[k + 1].given:
        text += chunks.chunks[k + 1].text[:1]
    at = rules.first(text, stop + 1 - base, end)
    return base + (at if at >= 0 else end)


def certified(chunks: ChunkList, engine: WindowEngine, change: Change) -> Splice:
    """Tokenize from the nearest cut before the change to the nearest one behind it."""
    c1, c2 = left_cut(chunks, engine.rules, change), right_cut(chunks, engine.rules, change)
    return _window(chunks, engine, change, c1, c2, "certified", 0)


def checked(chunks: ChunkList, engine: WindowEngine, change: Change, ids: np.ndarray | None = None) -> Splice:
    """Tokenize a window and accept it where it agrees with the old tokens on both sides; `ids`: all old ids."""
    assert ids is not None
    n = chunks.n_chars
    floor, ceiling = (chunks.floor(change.start, 0), chunks.ceiling(change.stop, n)) if chunks.n_given else (0, n)
    size = WINDOW
    for widened in range(DOUBLINGS + 1):
        a, b = max(floor, change.start - size), min(ceiling, change.stop + size)
        a, b = _settle(chunks, engine.rules, a, floor), _settle(chunks, engine.rules, b, change.stop, ceiling)
        if a == floor and b == ceiling:
            break
        window = chunks.slice(a, change.start) + change.text + chunks.slice(change.stop, b)
        fresh = engine.encode(window, a > 0)
        c1 = _accept(chunks, engine, change, a, floor, fresh, ids, left=True)
        c2 = None if c1 is None else _accept(chunks, engine, change, b, ceiling, fresh, ids, left=False)
        if c1 is not None and c2 is not None:
            skip = engine.measure(chunks.slice(a, c1))
            drop = engine.measure(chunks.slice(c2, b))
            low, high = np.searchsorted(fresh.ends, [skip, fresh.n_bytes - drop], "right").tolist()
            part = Encoded(fresh.ids[low:high], fresh.ends[low:high] - skip, fresh.n_bytes - skip - drop)
            text = chunks.slice(c1, change.start) + change.text + chunks.slice(change.stop, c2)
            return Splice(c1, c2, text, part, "checked", widened)
        size *= 2
    return _window(chunks, engine, change, floor, ceiling, "full", DOUBLINGS)


def _both(rules: CutRules, left: str, old: str, new: str) -> bool:
    """Is there a cut behind left's last character but (len(ahead) - 1), in the old and in the new text?"""
    one = len(left) == 1  # the cut lies right at the change: a text that ends there may be cut
    return ((one and not old) or rules.ok(left + old)) and ((one and not new) or rules.ok(left + new))


def _window(
    chunks: ChunkList, engine: WindowEngine, change: Change, c1: int, c2: int, path: str, widened: int
) -> Splice:
    window = chunks.slice(c1, change.start) + change.text + chunks.slice(change.stop, c2)
    if c1 == 0 and c2 == chunks.n_chars:
        path = "full"
    return Splice(c1, c2, window, engine.encode(window, c1 > 0), path, widened)


def _settle(chunks: ChunkList, rules: CutRules, at: int, low: int, high: int | None = None) -> int:
    """Move a window's edge outwards until it splits neither a surrogate pair nor what a normalizer would join."""
    step, end = (-1, low) if high is None else (1, high)
    while at != end:
        char = chunks.slice(at, at + 1)
        if not "\ud800" <= char <= "\udfff" and rules.steady(char):
            break
        at += step
    return at


def _accept(
    chunks: ChunkList,
    engine: WindowEngine,
    change: Change,
    edge: int,
    end: int,
    fresh: Encoded,
    ids: np.ndarray,
    left: bool,
) -> int | None:
    """A cut inside a run of equal records that passes the three conditions, on one side of the change; else None."""
    if edge == end:  # nothing lies beyond: the window is exact on this side
        return edge
    inner = change.start if left else change.stop
    low, high = (edge, inner) if left else (inner, edge)
    t_low, byte_low = chunks.locate(low, engine)
    t_high, byte_high = chunks.locate(high, engine)
    old_ends = chunks.ends_between(t_low, t_high)
    shift = byte_low if left else byte_high - fresh.n_bytes
    fresh_ends = fresh.ends + shift
    _, i, j = np.intersect1d(old_ends, fresh_ends, assume_unique=False, return_indices=True)
    if len(i) < 2:
        return None
    old_ids = ids[t_low:t_high]
    follows = (np.diff(i) == 1) & (np.diff(j) == 1) & (old_ids[i[1:]] == fresh.ids[j[1:]])
    # runs of True in `follows`: records that end where both do, start where both do, and have the same id
    edges = np.flatnonzero(np.diff(np.concatenate([[0], follows.view(np.int8), [0]])))
    found = [(int(old_ends[i[p]]), int(old_ends[i[q]]), q - p) for p, q in edges.reshape(-1, 2).tolist()]
    runs = [(p, q) for p, q, tokens in found if tokens >= 2 and q - p > engine.longest]
    c = left_cut(chunks, engine.rules, change) if left else right_cut(chunks, engine.rules, change)
    text = chunks.slice(low, high)
    while low < c < high or c == inner:
        byte = byte_low + engine.measure(text[: c - low])
        if any(p <= byte <= q for p, q in runs):
            return c
        at = c - low
        if left:
            cut = engine.rules.last(text, min(at - 1, len(text) - 2)) if min(at, len(text)) > 2 else -1
        else:
            cut = engine.rules.first(text, at + 1) if at + 1 < len(text) else -1
        c = low + cut if cut > 0 else -1
    return None
