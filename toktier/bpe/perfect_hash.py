"""A static perfect hash over fixed-width keys: one look-up, no probe loop, 32-bit arithmetic only.

"Hash and displace" (Belazzougui, Botelho, Dietzfelbinger, ESA 2009): a key's first hash picks a bucket, the bucket's
displacement bends the second hash so that every key of the table gets a slot of its own.  A look-up is then one read of
a small displacement table (it stays in cache) and one read of a row, on any backend.  The caller compares the key in
the row, so a foreign key is never mistaken for a stored one.

The hash functions take the array module as an argument: NumPy builds, JAX looks up, and both must agree bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = Any

_MAX_LOAD = 0.85
_MAX_DISPLACEMENT = 1 << 16
# Odd multipliers, one row a hash function; fixed, so that tables can be stored.
_MULTIPLIERS = np.random.Generator(np.random.PCG64(0x70C71E4)).integers(0, 1 << 31, (2, 16), dtype=np.uint32) * 2 + 1


class PerfectHash(NamedTuple):
    """displacement: uint16[2**bucket_bits]; a slot is below 2**slot_bits."""

    displacement: Array
    bucket_bits: int
    slot_bits: int
    seed: int


def _mix(h: Array) -> Array:
    """Spread every input bit over the word (the finalizer of MurmurHash3)."""
    h = (h ^ (h >> 16)) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * np.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def start_word(seed: int) -> np.uint32:
    """The word from which the hashes of a seed start."""
    return np.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF)


def hash_words(words: tuple[Array, ...], start: Array) -> tuple[Array, Array]:
    """Two independent uint32 hashes of keys given word by word (each uint32[...]) and the seed's start word."""
    hashes = []
    for row in _MULTIPLIERS:
        h: Array = start
        for word, multiplier in zip(words, row, strict=False):
            h = h + word * multiplier
        hashes.append(_mix(h))
    return hashes[0], hashes[1]


def bucket_of(h1: Array, bucket_bits: int) -> Array:
    """Bucket of a key from its first hash."""
    return h1 >> (32 - bucket_bits)


def slot_of(h2: Array, displacement: Array, slot_bits: int) -> Array:
    """Slot of a key from its second hash and its bucket's displacement (uint32)."""
    h = (h2 ^ (displacement * np.uint32(0x9E3779B1))) * np.uint32(0x85EBCA6B)
    return (h ^ (h >> 15)) * np.uint32(0x2C1B3C6D) >> (32 - slot_bits)


def slots(h: PerfectHash, words: tuple[Array, ...]) -> Array:
    """Slot (uint32) of each key: the same expression in NumPy and in a traced JAX function."""
    h1, h2 = hash_words(words, start_word(h.seed))
    return slot_of(h2, h.displacement[bucket_of(h1, h.bucket_bits)].astype(np.uint32), h.slot_bits)


def build(keys: np.ndarray, least_bits: int = 4) -> tuple[PerfectHash, np.ndarray]:
    """Perfect hash of distinct keys.

    Args:
      keys: uint32[n, words], all rows distinct.
      least_bits: at least 2**least_bits slots, so that tables of like size have one shape.

    Returns:
      The hash and the slot (int64[n]) of every key.

    Raises:
      ValueError: when two keys are equal (no seed can part them).
    """
    n = len(keys)
    slot_bits = max(least_bits, int(np.ceil(np.log2(max(n, 1) / _MAX_LOAD))))
    bucket_bits = max(2, slot_bits - 2)
    columns = tuple(keys[:, k] for k in range(keys.shape[1]))
    for seed in range(1, 33):
        placed = _place(columns, n, slot_bits, bucket_bits, seed)
        if placed is not None:
            displacement, slot = placed
            return PerfectHash(displacement, bucket_bits, slot_bits, seed), slot
    raise ValueError(f"no perfect hash for {n} keys: are two of them equal?")


def _place(columns: tuple[np.ndarray, ...], n: int, slot_bits: int, bucket_bits: int, seed: int):
    """One attempt: buckets from the fullest to the emptiest, many at a time; None where a bucket finds no place."""
    h1, h2 = hash_words(columns, start_word(seed)) if n else (np.zeros(0, np.uint32), np.zeros(0, np.uint32))
    bucket = bucket_of(h1, bucket_bits).astype(np.int64)
    order = np.argsort(bucket, kind="stable")
    sizes = np.bincount(bucket, minlength=1 << bucket_bits)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    taken = np.zeros(1 << slot_bits, bool)
    claim = np.zeros(1 << slot_bits, np.int64)
    displacement = np.zeros(1 << bucket_bits, np.uint16)
    slot = np.zeros(n, np.int64)
    for size in range(int(sizes.max(initial=0)), 0, -1):
        waiting = np.nonzero(sizes == size)[0]
        members = order[first[waiting][:, None] + np.arange(size)]  # [buckets, size]: indices of keys
        hashes = h2[members]
        for trial in range(_MAX_DISPLACEMENT):
            if not len(waiting):
                break
            at = slot_of(hashes, np.full(1, trial, np.uint32), slot_bits).astype(np.int64)
            apart = ~taken[at].any(1)
            if size > 1:
                ordered = np.sort(at, 1)
                apart &= (ordered[:, 1:] != ordered[:, :-1]).all(1)
            index = np.nonzero(apart)[0]
            claim[at[index]] = index[:, None]  # the last writer wins a contested slot; a bucket needs all of its own
            won = index[(claim[at[index]] == index[:, None]).all(1)]
            taken[at[won]] = True
            slot[members[won]] = at[won]
            displacement[waiting[won]] = trial
            keep = np.ones(len(waiting), bool)
            keep[won] = False
            waiting, members, hashes = waiting[keep], members[keep], hashes[keep]
        if len(waiting):
            return None
    return displacement, slot
