"""Merges of many pieces at once in NumPy: every merge that is safe now, in one round.

All pieces lie in one flat array with a sentinel before and behind each, so that no look at a neighbour needs to ask
where a piece ends.  Per token the array holds `rank` (of the pair with its right neighbour), `min_left` and `min_right`
(lowest rank of any pair with the token on its left, on its right); the sentinel takes part in no pair.

A round merges each local minimum, or run of equal pairs, that is orderly and out of reach from both sides
(docs/merges.md, sections 2 and 3).  A piece without one merges its lowest rank (section 4), so each makes progress.
Finished pieces leave.  Where rounds stop paying, be it that little is left or that one long piece's merges hang on each
other, the rest is merged in plain Python: any state on the way has the same result.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from toktier.bpe import perfect_hash
from toktier.bpe.char_start import AFTER_ASCII, AFTER_MULTI, AT_HEAD, TOKEN_MASK
from toktier.bpe.tables import BpeTables
from toktier.host import long
from toktier.host.short import PieceMerger

BLOCK = 1 << 17  # bytes worked on together: bounds memory; below 1 << 16 the calls themselves begin to count
_DEPTH = 2  # neighbours looked at on either side
_PAD = _DEPTH + 2  # sentinels at the ends of the array
_THIN = 8  # a round that merges less than one token in so many looks for pieces without a safe merge
_SLOW = 32  # and one that merges less than one in so many is not worth its passes
_SMALL = 512  # nor is any round below this many tokens
_WIDE = 0xC2  # the first byte of a character of several bytes


class _State(NamedTuple):
    """Tokens with sentinels; all arrays int32 of one length."""

    token: np.ndarray
    rank: np.ndarray
    min_left: np.ndarray
    min_right: np.ndarray


class RoundMerger:
    """BPE of many pieces.

    Args:
      tables: the vocabulary.
      single: takes over pieces for which rounds do not pay.
    """

    def __init__(self, tables: BpeTables, single: PieceMerger):
        self._tables, self._single = tables, single
        self._infinite = len(tables.product)
        self._sentinel = tables.n_ids
        self._min_left = np.append(tables.min_left, self._infinite).astype(np.int32)
        self._min_right = np.append(tables.min_right, self._infinite).astype(np.int32)
        self._orderly = np.append(tables.orderly, False)
        self._product = tables.product.astype(np.int32, copy=False)
        self._byte_token = tables.byte_token.astype(np.int32, copy=False)

    def encode(self, pieces: list[bytes]) -> list[np.ndarray]:
        """int32 ids of each piece by its merges; none is empty, and each is a stretch of UTF-8."""
        if max(map(len, pieces), default=0) <= 2 * long.PART:
            return self._encode_blocks(pieces)
        cut = [long.parts_of(piece, long.PART) for piece in pieces]
        ids = iter(self._encode_blocks(list(itertools.chain.from_iterable(cut))))
        seams = long.Seams(self._tables, self._single.encode)
        out = []
        for piece, parts in zip(pieces, cut, strict=True):
            joined = seams.join([next(ids) for _ in parts])
            out.append(self._encode_block([piece])[0] if joined is None else joined)
        return out

    def _encode_blocks(self, pieces: list[bytes]) -> list[np.ndarray]:
        out: list[np.ndarray] = []
        first, size = 0, 0
        for i, piece in enumerate(pieces):
            if size and size + len(piece) > BLOCK:
                out += self._encode_block(pieces[first:i])
                first, size = i, 0
            size += len(piece)
        return out + self._encode_block(pieces[first:]) if pieces else out

    def _encode_block(self, pieces: list[bytes]) -> list[np.ndarray]:
        state = self._state(self._first_tokens(pieces))
        out: list[np.ndarray | None] = [None] * len(pieces)
        number = np.arange(len(pieces))  # of the pieces still at work
        slow = False
        while len(number):
            size = len(state.token)
            if slow or size < _SMALL:
                state = self._finish_singly(state)
            else:
                picked = self._safe(state)
                if len(picked) * _THIN < size:
                    picked = self._with_lowest(state, picked)
                if len(picked):
                    state = self._merge(state, picked)
                slow = len(picked) * _SLOW < size
            state, number = self._drop_finished(state, number, out)
        return out  # type: ignore[return-value]  # every piece has left the loop

    def _state(self, token: np.ndarray) -> _State:
        """All that a round needs to know of tokens with sentinels."""
        rank = np.full(len(token), self._infinite, np.int32)
        rank[:-1] = self._ranks(token[:-1], token[1:])
        return _State(token, rank, self._min_left[token], self._min_right[token])

    def _first_tokens(self, pieces: list[bytes]) -> np.ndarray:
        """The tokens to start from, with sentinels: characters where that is safe in any context, else bytes."""
        # 0xFF, which UTF-8 never holds, marks the sentinels
        data = np.frombuffer(b"\xff" * _PAD + b"\xff".join(pieces) + b"\xff" * _PAD, np.uint8)
        token = self._byte_token[data]
        token[data == 0xFF] = self._sentinel
        wide = np.flatnonzero((data >= _WIDE) & (data < 0xF5))
        if not len(wide):
            return token
        t = self._tables
        lead, b1, b2, b3 = (data[wide + k].astype(np.int32) for k in range(4))
        # a piece may end inside a character: the sentinel is then no continuation byte
        complete = (b1 < 0xC0) & ((lead < 0xE0) | (b2 < 0xC0)) & ((lead < 0xF0) | (b3 < 0xC0))
        two, three = (lead & 31) << 6 | b1 & 63, (lead & 15) << 12 | (b1 & 63) << 6 | b2 & 63
        four = (lead & 7) << 18 | (b1 & 63) << 12 | (b2 & 63) << 6 | b3 & 63
        point = np.where(complete, np.where(lead < 0xE0, two, np.where(lead < 0xF0, three, four)), 0)
        start = t.char_start[t.char_block[point >> 8].astype(np.int32) << 8 | point & 255]
        before = data[wide - 1]
        need = np.where(before == 0xFF, AT_HEAD, np.where(before < 0x80, AFTER_ASCII, AFTER_MULTI))
        use = (start & need.astype(np.int32)) != 0
        at, start = wide[use], start[use] & np.int32(TOKEN_MASK)
        token[at] = start
        keep = np.ones(len(data), bool)
        length = t.token_length[start]
        for k in (1, 2, 3):
            keep[at[length > k] + k] = False
        return token[keep]

    def _ranks(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """int32 rank of each pair, infinite where it never merges."""
        t = self._tables
        a, b = left.astype(np.uint32), right.astype(np.uint32)
        rows = t.pair_rows[perfect_hash.slots(t.pair_hash, (a, b))]
        same = (rows[:, 0] == (a | (b & 0xFFF) << 20)) & (rows[:, 1] & 0xFF == b >> 12)
        # the sentinel is in no pair; its id may not fit the packed key, so it is asked for by name
        same &= (left != self._sentinel) & (right != self._sentinel)
        return np.where(same, (rows[:, 1] >> 8).astype(np.int32), np.int32(self._infinite))

    def _safe(self, state: _State) -> np.ndarray:
        """Positions, ascending, whose pairs may all be merged now."""
        rank = state.rank
        inner = rank[1:-1]
        # the left end of a run of equal pairs: mostly a run of one
        begin = np.flatnonzero((inner < rank[:-2]) & (inner <= rank[2:])) + 1
        begin = begin[self._orderly[rank[begin]]]
        lowest = rank[begin]
        end = begin
        plateau = rank[begin + 1] == lowest
        if plateau.any():
            change = np.append(np.flatnonzero(rank[1:] != rank[:-1]), len(rank) - 1)  # last index of every run
            end = begin.copy()
            end[plateau] = change[np.searchsorted(change, begin[plateau])]
        # a lower rank right behind the run is in reach of its last token, so that case is refused here as well
        use = self._out_of_reach(state, begin, lowest, -1) & self._out_of_reach(state, end + 1, lowest, 1)
        begin, end = begin[use], end[use]
        return _every_other(begin, end) if plateau.any() else begin

    def _out_of_reach(self, state: _State, at: np.ndarray, rank: np.ndarray, step: int) -> np.ndarray:
        """May no merge that goes first take the token at `at` from the side of `step`?"""
        if step < 0:
            swallow, limit, beside = state.min_right, rank, -1  # ranks must be above
        else:
            swallow, limit, beside = state.min_left, rank - 1, 0  # equal ones go later
        safe = swallow[at] > limit
        chain = ~safe
        for _ in range(_DEPTH):
            open_ = np.flatnonzero(chain)
            if not len(open_):
                break
            # a sentinel is always out of reach, so a chain never runs past it
            chain[open_] = state.rank[at[open_] + beside] > limit[open_]
            open_ = open_[chain[open_]]
            at = at + step
            reached = swallow[at[open_]] > limit[open_]
            safe[open_[reached]] = True
            chain[open_[reached]] = False
        return safe

    def _with_lowest(self, state: _State, picked: np.ndarray) -> np.ndarray:
        """Add, in pieces without a pick, the lowest rank: all occurrences where it is orderly, else the leftmost."""
        edge = np.flatnonzero(state.token == self._sentinel)
        lowest = np.minimum.reduceat(state.rank, edge)
        lowest[np.searchsorted(edge, picked) - 1] = self._infinite
        here = np.repeat(lowest, np.diff(np.append(edge, len(state.token))))
        at = np.flatnonzero((state.rank == here) & (here < self._infinite))
        if not len(at):
            return picked
        first = np.append(True, at[1:] != at[:-1] + 1)  # of a run of equal pairs
        more = _every_other(at[first], at[np.append(first[1:], True)])
        piece = np.searchsorted(edge, more)
        leftmost = np.append(True, piece[1:] != piece[:-1])
        more = more[self._orderly[state.rank[more]] | leftmost]
        return np.sort(np.concatenate([picked, more]))

    def _merge(self, state: _State, picked: np.ndarray) -> _State:
        """Merge the pairs at `picked` (ascending, no two overlapping) and look up the pairs beside them."""
        token = state.token.copy()
        made = self._product[state.rank[picked]]
        token[picked] = made
        min_left, min_right = state.min_left.copy(), state.min_right.copy()
        min_left[picked], min_right[picked] = self._min_left[made], self._min_right[made]
        keep = np.ones(len(token), bool)
        keep[picked + 1] = False
        token, rank = token[keep], state.rank[keep]
        at = picked - np.arange(len(picked))  # where the products are now
        rank[at] = self._ranks(made, token[at + 1])
        # the pair to the left: once, where two products stand side by side
        left = at[np.append(True, at[1:] != at[:-1] + 1)] - 1
        rank[left] = self._ranks(token[left], token[left + 1])
        return _State(token, rank, min_left[keep], min_right[keep])

    def _drop_finished(self, state: _State, number: np.ndarray, out: list) -> tuple[_State, np.ndarray]:
        """Hand out the pieces in which nothing merges any more."""
        edge = np.flatnonzero(state.token == self._sentinel)
        edge = edge[_PAD - 1 : len(edge) - _PAD + 1]  # the sentinel before each piece, and the one behind the last
        alive = np.minimum.reduceat(state.rank, edge[:-1]) < self._infinite
        if alive.all():
            return state, number
        for k in np.flatnonzero(~alive).tolist():
            out[number[k]] = state.token[edge[k] + 1 : edge[k + 1]]
        keep = np.ones(len(state.token), bool)
        keep[edge[0] : edge[-1]] = np.repeat(alive, np.diff(edge))
        return _State(*(a[keep] for a in state)), number[alive]

    def _finish_singly(self, state: _State) -> _State:
        """Let the heap finish every piece: the same state of the world, one merge at a time."""
        edge = np.flatnonzero(state.token == self._sentinel)
        edge = edge[_PAD - 1 : len(edge) - _PAD + 1]
        parts = [np.full(_PAD, self._sentinel, np.int32)]
        for first, last in zip(edge[:-1].tolist(), edge[1:].tolist(), strict=True):
            merged = self._single.merge(state.token[first + 1 : last].tolist())
            parts += [np.array(merged, np.int32), np.full(1, self._sentinel, np.int32)]
        token = np.concatenate([*parts, np.full(_PAD - 1, self._sentinel, np.int32)])
        return self._state(token)


def _every_other(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """begin, begin + 2, ... up to end, for each pair of them."""
    count = (end - begin) // 2 + 1
    total = int(count.sum())
    step = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(begin, count) + 2 * step
