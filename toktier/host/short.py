"""Merges of one piece in plain Python: fastest for a handful of short pieces, and near-linear for a long one."""

from __future__ import annotations

import bisect
import heapq
import itertools

import numpy as np

from toktier.bpe.char_start import AFTER_ASCII, AFTER_MULTI, AT_HEAD, TOKEN_MASK
from toktier.bpe.tables import BpeTables

SHORT = 96  # tokens; up to here a scan of a list for its minimum beats a heap
LONG = 4096  # tokens; from here on many pairs have the same rank, and places in order of rank beat a heap of all
_SHIFT = 20
_RANK = (1 << _SHIFT) - 1
_REMAINDERS = 1048573  # a prime
_PAIRS = 1 << 17  # pairs remembered at a time


class PairRanks(dict):
    """`left << 20 | right` -> rank, `infinite` for a pair that never merges.

    A dictionary of 200,000 pairs takes some 40 ms to build, too long for a first short text, and 30 MB.  So pairs are
    found by bisection in a sorted array when they are first met, and kept; full, the dictionary is emptied.  Most pairs
    that are met never merge, which a table of one byte for each remainder of a division mostly tells at once.
    """

    def __init__(self, tables: BpeTables):
        super().__init__()
        self.infinite = len(tables.product)
        pairs = tables.pairs.astype(np.int64)
        self._sorted = np.sort((pairs[:, 0] << _SHIFT | pairs[:, 1]) << _SHIFT | np.arange(len(pairs)))
        self._view = self._sorted.data
        some = np.zeros(_REMAINDERS, bool)
        some[(pairs[:, 0] << _SHIFT | pairs[:, 1]) % _REMAINDERS] = True
        self._some = some.tobytes()

    def __missing__(self, pair: int) -> int:
        rank = self.infinite
        if self._some[pair % _REMAINDERS]:
            at = bisect.bisect_left(self._view, pair << _SHIFT)
            if at < len(self._view) and self._view[at] >> _SHIFT == pair:
                rank = self._view[at] & _RANK
        if len(self) >= _PAIRS:
            self.clear()
        self[pair] = rank
        return rank


class PieceMerger:
    """BPE of single pieces."""

    def __init__(self, tables: BpeTables):
        self._ranks = PairRanks(tables)
        self._product = np.ascontiguousarray(tables.product).data
        self._infinite = len(tables.product)
        self._orderly = bool(tables.orderly.all())
        self._byte_token = tables.byte_token.tolist()
        self._char_block = np.ascontiguousarray(tables.char_block).data
        self._char_start = np.ascontiguousarray(tables.char_start).data

    @property
    def pairs_known(self) -> int:
        """Pairs whose rank is remembered."""
        return len(self._ranks)

    def encode(self, piece: bytes) -> list[int]:
        """Ids of a piece by its merges; whether it is a token as a whole is the caller's question.

        A piece is a stretch of UTF-8 that may begin or end inside a character.
        """
        byte_token = self._byte_token
        if piece.isascii():
            return self.merge([byte_token[b] for b in piece])
        tokens: list[int] = []
        block, start, need = self._char_block, self._char_start, AT_HEAD
        for char in piece.decode("utf-8", "surrogateescape"):  # bytes of a broken character come one by one
            point = ord(char)
            if point < 0x80:
                tokens.append(byte_token[point])
                need = AFTER_ASCII
            else:
                found = start[block[point >> 8] << 8 | point & 255]
                if found & need:  # the character may be started from in this place
                    tokens.append(found & TOKEN_MASK)
                else:
                    tokens += [byte_token[b] for b in char.encode("utf-8", "surrogateescape")]
                need = AFTER_MULTI
        return self.merge(tokens)

    def merge(self, tokens: list[int]) -> list[int]:
        """Merge until no two neighbours may; `tokens` is used up."""
        if len(tokens) <= SHORT:
            return self._merge_list(tokens)
        return self._merge_ranks(tokens) if len(tokens) >= LONG and self._orderly else self._merge_heap(tokens)

    def _merge_list(self, tokens: list[int]) -> list[int]:
        rank_of, product, infinite = self._ranks.__getitem__, self._product, self._infinite
        ranks = [rank_of(a << _SHIFT | b) for a, b in itertools.pairwise(tokens)]
        while ranks:
            best = min(ranks)
            if best == infinite:
                break
            i = ranks.index(best)  # the leftmost
            tokens[i] = made = product[best]
            del tokens[i + 1], ranks[i]
            if i:
                ranks[i - 1] = rank_of(tokens[i - 1] << _SHIFT | made)
            if i < len(ranks):
                ranks[i] = rank_of(made << _SHIFT | tokens[i + 1])
        return tokens

    def _merge_heap(self, tokens: list[int]) -> list[int]:
        """Linked tokens and a heap of `rank << 32 | position`; an entry counts only if it is still the pair's rank."""
        rank_of, product, infinite = self._ranks.__getitem__, self._product, self._infinite
        n = len(tokens)
        ranks = [rank_of(a << _SHIFT | b) for a, b in itertools.pairwise(tokens)]
        ranks.append(infinite)
        heap = [r << 32 | i for i, r in enumerate(ranks) if r != infinite]
        heapq.heapify(heap)
        before, behind = list(range(-1, n - 1)), list(range(1, n + 1))
        pop, push = heapq.heappop, heapq.heappush
        while heap:
            entry = pop(heap)
            i, rank = entry & 0xFFFFFFFF, entry >> 32
            if ranks[i] != rank:
                continue
            j = behind[i]
            tokens[i] = made = product[rank]
            tokens[j], ranks[j] = -1, infinite
            behind[i] = j = behind[j]
            ranks[i] = infinite
            if j < n:
                before[j] = i
                ranks[i] = r = rank_of(made << _SHIFT | tokens[j])
                if r != infinite:
                    push(heap, r << 32 | i)
            k = before[i]
            if k >= 0:
                ranks[k] = r = rank_of(tokens[k] << _SHIFT | made)
                if r != infinite:
                    push(heap, r << 32 | k)
        return [t for t in tokens if t >= 0]

    def _merge_ranks(self, tokens: list[int]) -> list[int]:
        """One rank after the other, the places of each from left to right; a heap holds the ranks, not the places.

        Every rank is orderly here: what a merge makes possible ranks above it, so that no place is added to a rank that
        is at work or done.
        """
        rank_of, product, infinite = self._ranks.__getitem__, self._product, self._infinite
        n = len(tokens)
        ranks = [rank_of(a << _SHIFT | b) for a, b in itertools.pairwise(tokens)]
        ranks.append(infinite)
        places: dict[int, list[int]] = {}
        for i, r in enumerate(ranks):
            if r != infinite:
                if r in places:
                    places[r].append(i)
                else:
                    places[r] = [i]
        heap = list(places)
        heapq.heapify(heap)
        before, behind = list(range(-1, n - 1)), list(range(1, n + 1))
        while heap:
            rank = heapq.heappop(heap)
            made = product[rank]
            for i in sorted(places.pop(rank)):
                if ranks[i] != rank:
                    continue
                j = behind[i]
                tokens[i] = made
                tokens[j], ranks[j] = -1, infinite
                behind[i] = j = behind[j]
                ranks[i] = infinite
                k = before[i]
                if j < n:
                    before[j] = i
                    ranks[i] = r = rank_of(made << _SHIFT | tokens[j])
                    if r != infinite:
                        if r in places:
                            places[r].append(i)
                        else:
                            places[r] = [i]
                            heapq.heappush(heap, r)
                if k >= 0:
                    ranks[k] = r = rank_of(tokens[k] << _SHIFT | made)
                    if r != infinite:
                        if r in places:
                            places[r].append(k)
                        else:
                            places[r] = [k]
                            heapq.heappush(heap, r)
        return [t for t in tokens if t >= 0]
