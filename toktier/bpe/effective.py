"""Which merges can ever happen: the last step of each token's own derivation.

Wherever a span of a text becomes the token t, the merges inside the span were those that BPE makes on bytes(t) alone,
in the same order: a merge across the edge of the span would have kept it from becoming t, and merges elsewhere do not
touch it.  So t is only ever produced by the pair that ends BPE(bytes(t)), and never if BPE(bytes(t)) is not [t].  All
other listed pairs can be dropped without changing a result (docs/merges.md has the proof).  One pair a token is left:
ranks and products become unique, "listed pairs" and "any two neighbours whose bytes are a token" become the same thing,
and a gpt-oss table shrinks from 446,000 pairs to 199,000.
"""

from __future__ import annotations

import numpy as np

from toktier.spec import Spec

INFINITE = np.int64(1) << 40  # rank of a pair that never merges
_POLYNOMIAL = np.uint64(0x9E3779B97F4A7C15)


class RankLookup:
    """Pair -> (rank, product) by binary search; only used while tables are built."""

    def __init__(self, pairs: np.ndarray, rank: np.ndarray, product: np.ndarray):
        key = pairs[:, 0].astype(np.int64) << 20 | pairs[:, 1]
        # of equal pairs the last one counts, as in the reference's map
        order = np.lexsort((np.arange(len(key)), key))
        last = np.append(key[order][1:] != key[order][:-1], True) if len(key) else np.zeros(0, bool)
        self._key = np.append(key[order][last], np.int64(1) << 62)
        self._rank = np.append(rank[order][last].astype(np.int64), INFINITE)
        self._product = np.append(product[order][last], -1)

    def __call__(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Index of each pair in the table; the last index stands for "no such pair"."""
        key = left.astype(np.int64) << 20 | right
        at = np.searchsorted(self._key, key)
        return np.where(self._key[at] == key, at, len(self._key) - 1)

    def rank(self, index: np.ndarray) -> np.ndarray:
        """int64 rank of each index, INFINITE for "no such pair"."""
        return self._rank[index]

    def product(self, index: np.ndarray) -> np.ndarray:
        """Token made by each index."""
        return self._product[index]


def byte_tokens(spec: Spec) -> np.ndarray:
    """int32[256]: id of the token of each single byte, -1 where there is none."""
    table = np.full(256, -1, np.int32)
    single = np.nonzero(np.diff(spec.token_offsets) == 1)[0]
    table[spec.token_blob[spec.token_offsets[single]]] = single
    return table


def listed(spec: Spec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs that the spec's rule may merge: (pairs int32[M,2], rank int64[M], product int32[M])."""
    if spec.merge_rule == "listed":
        return spec.merges[:, :2], np.arange(len(spec.merges), dtype=np.int64), spec.merges[:, 2]
    return _pairs_of_splits(spec)


def _pairs_of_splits(spec: Spec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every split of every token into two tokens, the rank being the whole's id (the rule of tiktoken)."""
    offsets, blob = spec.token_offsets, spec.token_blob
    lengths = np.diff(offsets)
    # prefix[i] = sum over j < i of (byte + 1) * P**j; a substring's hash is a difference shifted back to P**0
    powers = np.ones(len(blob) + 1, np.uint64)
    np.multiply.accumulate(np.full(len(blob), _POLYNOMIAL, np.uint64), out=powers[1:])
    inverse = np.ones(len(blob) + 1, np.uint64)
    np.multiply.accumulate(
        np.full(len(blob), np.uint64(pow(int(_POLYNOMIAL), -1, 1 << 64)), np.uint64), out=inverse[1:]
    )
    prefix = np.zeros(len(blob) + 1, np.uint64)
    np.cumsum((blob.astype(np.uint64) + np.uint64(1)) * powers[:-1], dtype=np.uint64, out=prefix[1:])

    def substring_hash(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        return (prefix[stop] - prefix[start]) * inverse[start]

    tokens = np.nonzero(lengths > 0)[0]
    hashes = substring_hash(offsets[tokens], offsets[tokens + 1])
    order = np.argsort(hashes, kind="stable")
    sorted_hashes, sorted_tokens = hashes[order], tokens[order]

    def find(start: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Token with the bytes blob[start:stop], -1 where there is none."""
        h = substring_hash(start, stop)
        at = np.minimum(np.searchsorted(sorted_hashes, h), len(sorted_hashes) - 1)
        token = np.where((sorted_hashes[at] == h) & (lengths[sorted_tokens[at]] == stop - start), sorted_tokens[at], -1)
        return _keep_equal_bytes(blob, offsets, token, start, stop)

    long = tokens[lengths[tokens] >= 2]
    splits = (lengths[long] - 1).astype(np.int64)
    whole = np.repeat(long, splits)
    cut = offsets[whole] + 1 + _ramp(splits)
    left = find(offsets[whole], cut)
    keep = left >= 0
    whole, cut, left = whole[keep], cut[keep], left[keep]
    right = find(cut, offsets[whole + 1])
    keep = right >= 0
    whole, left, right = whole[keep], left[keep], right[keep]
    return np.stack([left, right], 1).astype(np.int32), whole.astype(np.int64), whole.astype(np.int32)


def _ramp(counts: np.ndarray) -> np.ndarray:
    """0 .. count-1 for each count, one after the other."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)


def _keep_equal_bytes(blob, offsets, token, start, stop) -> np.ndarray:
    """Turn a match of hashes into a match of bytes: -1 where a byte differs."""
    index = np.nonzero(token >= 0)[0]
    counts = stop[index] - start[index]
    ramp = _ramp(counts)
    same = blob[np.repeat(offsets[token[index]], counts) + ramp] == blob[np.repeat(start[index], counts) + ramp]
    wrong = np.unique(np.repeat(index, counts)[~same])
    token[wrong] = -1
    return token


def derivations(spec: Spec, lookup: RankLookup, byte_token: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """BPE of each token's own bytes.

    Returns:
      reachable: bool[n_ids], BPE(bytes(t)) == [t] (single bytes included).
      last: int64[n_ids], index in `lookup` of the merge that ends it; meaningless where not reachable or a single byte.
    """
    lengths = np.diff(spec.token_offsets)
    reachable = np.zeros(spec.n_ids, bool)
    last = np.zeros(spec.n_ids, np.int64)
    reachable[byte_token[byte_token >= 0]] = True
    longest = int(lengths.max(initial=0))
    edges = sorted({*range(2, min(17, longest + 1)), *(e for e in (24, 32, 48, 64, 96, 128) if e < longest), longest})
    low = 1
    for high in edges:
        tokens = np.nonzero((lengths > low) & (lengths <= high))[0]
        for part in np.array_split(tokens, max(1, len(tokens) * high // (1 << 20))):
            _derive(spec, lookup, byte_token, part, high, reachable, last)
        low = max(low, high)
    return reachable, last


def _derive(spec, lookup, byte_token, tokens, width, reachable, last) -> None:
    """One length group of `derivations`: all of them side by side, one merge a round."""
    if not len(tokens):
        return
    lengths = np.diff(spec.token_offsets)[tokens]
    columns = np.arange(width)
    inside = columns < lengths[:, None]
    at = np.minimum(spec.token_offsets[tokens][:, None] + columns, len(spec.token_blob) - 1)
    # -1 stands for "nothing": no pair with it is in the table (keys are then negative or foreign)
    state = np.where(inside, byte_token[spec.token_blob[at]], -1).astype(np.int32)
    found = _pair_index(lookup, state[:, :-1], state[:, 1:])
    while len(tokens):
        ranks = lookup.rank(found)
        position = ranks.argmin(1)
        rows = np.arange(len(tokens))
        best = found[rows, position]
        alive = lookup.rank(best) < INFINITE
        tokens, state, found, position, best = tokens[alive], state[alive], found[alive], position[alive], best[alive]
        if not len(tokens):
            return
        rows, columns = np.arange(len(tokens)), np.arange(state.shape[1])
        behind = columns[None, :] > position[:, None]
        state = np.where(behind, np.append(state[:, 1:], np.full((len(tokens), 1), -1, np.int32), 1), state)
        state[rows, position] = lookup.product(best)
        behind = behind[:, : found.shape[1]]
        found = np.where(behind, np.append(found[:, 1:], np.full((len(tokens), 1), -1), 1), found)
        padded = np.append(state, np.full((len(tokens), 1), -1, np.int32), 1)
        found[rows, np.minimum(position, found.shape[1] - 1)] = _pair_index(
            lookup, padded[rows, position], padded[rows, position + 1]
        )
        left = np.maximum(position - 1, 0)
        fresh = _pair_index(lookup, state[rows, left], padded[rows, left + 1])
        found[rows, left] = np.where(position > 0, fresh, found[rows, left])
        done = padded[:, 1] < 0
        made = done & (state[:, 0] == tokens)
        reachable[tokens[made]] = True
        last[tokens[made]] = best[made]
        keep = ~done
        tokens, state, found = tokens[keep], state[keep, :-1], found[keep, :-1] if found.shape[1] > 1 else found[keep]


def _pair_index(lookup: RankLookup, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Index of each pair, "no such pair" where a member is missing (-1)."""
    index = np.full(left.shape, -1, np.int64)
    both = (left >= 0) & (right >= 0)
    index[both] = lookup(left[both], right[both])
    return index


def effective_merges(spec: Spec) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The merges that can happen.

    Returns:
      pairs int32[R,2] and product int32[R], rank = row; reachable bool[n_ids]; byte_token int32[256].
    """
    pairs, rank, product = listed(spec)
    byte_token = byte_tokens(spec)
    lookup = RankLookup(pairs, rank, product)
    reachable, last = derivations(spec, lookup, byte_token)
    lengths = np.diff(spec.token_offsets)
    made = np.nonzero(reachable & (lengths > 1))[0]
    made = made[np.argsort(lookup.rank(last[made]), kind="stable")]
    key = lookup._key[last[made]]
    out = np.stack([key >> 20, key & ((1 << 20) - 1)], 1).astype(np.int32)
    return out, made.astype(np.int32), reachable, byte_token
