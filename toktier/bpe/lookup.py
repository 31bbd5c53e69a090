"""Exact look-ups on the device: piece bytes -> id, pair of ids -> merge rank (traced JAX functions)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from toktier.bands import band, padded
from toktier.bpe import perfect_hash
from toktier.bpe.segments import Segmenter
from toktier.bpe.tables import WORD_BYTES, BpeTables
from toktier.fence import fence

Table = Any  # a NumPy array until it is put on the device, a jax.Array from then on

ID_MASK = (1 << 20) - 1
_FINAL = np.uint32(1 << 31)
# of a token that no merges make: only a whole piece is it, and no part of one
_ONLY_WHOLE, _ONLY_WHOLE_LONG = np.uint32(1 << 25), np.uint32(1 << 30)


class HashTable(NamedTuple):
    """displacement: uint16[2**b]; rows: uint32[2**s, width]; start: uint32 scalar from which the hashes begin."""

    displacement: Table
    rows: Table
    start: Table

    def row_of(self, words: tuple[Array, ...]) -> Array:
        """int32: the only row that may hold each key."""
        h1, h2 = perfect_hash.hash_words(words, self.start)
        buckets, slots = self.displacement.shape[0].bit_length() - 1, self.rows.shape[0].bit_length() - 1
        bend = self.displacement[perfect_hash.bucket_of(h1, buckets).astype(jnp.int32)].astype(jnp.uint32)
        return perfect_hash.slot_of(h2, bend, slots).astype(jnp.int32)


class LookupTables(NamedTuple):
    """Device form of BpeTables.

    piece, chain, pair: see BpeTables; product: int32[R + 1], token made by each rank (R: no merge); length:
    int32[n_ids]; byte_token: int32[256]; byte_pair_rank: int32[65536]; char_block: int32[0x1100]; char_start:
    int32[blocks * 256]; left_reach, right_reach: see BpeTables; orderly: bool[R + 1]; joined: uint32[2**15] and
    partial: uint32[2**11], the bits of a `Segmenter`.
    """

    piece: HashTable
    chain: HashTable
    pair: HashTable
    product: Table
    length: Table
    byte_token: Table
    byte_pair_rank: Table
    char_block: Table
    char_start: Table
    left_reach: HashTable
    right_reach: HashTable
    orderly: Table
    joined: Table
    partial: Table

    @property
    def known(self) -> Array:
        """A scalar that is always true, for `fence`: no seed gives a start word of 0."""
        return self.pair.start != 0


def lookup_tables(t: BpeTables) -> LookupTables:
    """Arrays for the device (NumPy; the caller puts them there), padded to bands; "no merge" is the last rank."""
    ranks, ids, blocks = band(len(t.product) + 1, 1 << 18), band(t.n_ids, 1 << 18), band(len(t.char_start) // 256, 512)
    none = ranks - 1

    def table(h: perfect_hash.PerfectHash, rows: np.ndarray) -> HashTable:
        return HashTable(h.displacement, rows, np.asarray(perfect_hash.start_word(h.seed)))

    def rank(values: np.ndarray) -> np.ndarray:
        return np.where(values == len(t.product), none, values).astype(np.int32)

    only_whole = padded(t.only_whole, False, ID_MASK + 1)
    pieces, chain = t.piece_rows.copy(), t.chain_rows.copy()
    pieces[only_whole[pieces[:, 4] & ID_MASK], 4] |= _ONLY_WHOLE
    chain[(chain[:, 6] >= _FINAL) & only_whole[chain[:, 6] & ID_MASK], 6] |= _ONLY_WHOLE_LONG
    segmenter = Segmenter(t, whole=True)
    return LookupTables(
        table(t.piece_hash, pieces),
        table(t.chain_hash, chain),
        table(t.pair_hash, t.pair_rows),
        padded(t.product.astype(np.int32), -1, ranks),
        padded(t.token_length.astype(np.int32), 0, ids),
        t.byte_token.astype(np.int32),
        rank(t.byte_pair_rank),
        t.char_block.astype(np.int32),
        padded(t.char_start.astype(np.int32), 0, blocks * 256),
        table(t.left_reach_hash, t.left_reach_rows),
        table(t.right_reach_hash, t.right_reach_rows),
        padded(t.orderly.astype(bool), False, ranks),
        _bits(segmenter.joined),
        _bits(segmenter.partial),
    )


def _bits(flags: np.ndarray) -> np.ndarray:
    return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)


def aligned_words(data: Array) -> Array:
    """The buffer as little-endian uint32[N / 4 + 5] (zeros behind), for `words_at`."""
    return jnp.pad(lax.bitcast_convert_type(data.reshape(-1, 4), jnp.uint32), (0, WORD_BYTES // 4 + 1))


def words_at(words: Array, start: Array, length: Array) -> tuple[Array, ...]:
    """The 16 bytes at each start as four little-endian words, zero from `length` (int32, any value) on."""
    index = jnp.minimum(start >> 2, words.shape[0] - 5)
    shift = ((start & 3) << 3).astype(jnp.uint32)
    pieces = [words[index + k] for k in range(WORD_BYTES // 4 + 1)]
    out = []
    for k in range(WORD_BYTES // 4):
        word = unaligned(pieces[k], pieces[k + 1], shift)
        kept = jnp.clip(length - 4 * k, 0, 4).astype(jnp.uint32)
        mask = jnp.where(kept >= 4, jnp.uint32(0xFFFFFFFF), (jnp.uint32(1) << (kept << 3)) - 1)
        out.append(word & mask)
    return tuple(out)


def unaligned(low: Array, high: Array, shift: Array) -> Array:
    """uint32: the word that begins `shift` bits (below 32) behind the beginning of `low`, and ends in `high`."""
    return low >> shift | (high << 1) << (jnp.uint32(31) - shift)  # a shift by 32 is undefined, hence two steps


def find_piece(t: LookupTables, words: tuple[Array, ...], length: Array, part: Array) -> tuple[Array, Array]:
    """Whole-piece look-up of pieces of 1 to 16 bytes: (int32 id, bool found); `part`: it is no whole piece."""
    table = t.piece
    row = fence(t.known, table.row_of((*words, length.astype(jnp.uint32))))
    last = table.rows[row, 4]
    same = (last >> 20 & 31) == length.astype(jnp.uint32)
    for k in range(4):
        same &= table.rows[row, k] == words[k]
    return (last & ID_MASK).astype(jnp.int32), same & ~(part & (last & _ONLY_WHOLE != 0))


def find_long_piece(table: HashTable, words: Array, start: Array, length: Array, part: Array) -> tuple[Array, Array]:
    """Whole-piece look-up of pieces longer than 16 bytes, 16 bytes a step; dead ends stop early.

    Args:
      words: of `aligned_words`; start, length: int32[k] (length 0: not asked); part: bool[k], it is no whole piece.
    """

    def unsettled(carry):
        return jnp.any(carry[3])

    def one_chunk(carry):
        state, at, token, alive = carry
        left = length - at
        final = left <= WORD_BYTES
        chunk = words_at(words, start + at, left)
        size = jnp.where(final, left, 0).astype(jnp.uint32)  # 0 says "goes on behind these 16 bytes"
        row = table.row_of((state, *chunk, size))
        same = (table.rows[row, 0] == state) & (table.rows[row, 5] == size)
        for k in range(4):
            same &= table.rows[row, k + 1] == chunk[k]
        value = table.rows[row, 6]
        found = alive & same & ~(final & part & (value & _ONLY_WHOLE_LONG != 0))
        token = jnp.where(found & final, (value & ID_MASK).astype(jnp.int32), token)
        return jnp.where(found, value, state), at + WORD_BYTES, token, found & ~final

    zero = jnp.zeros_like(start)
    carry = (zero.astype(jnp.uint32), zero, zero - 1, length > WORD_BYTES)
    token = lax.while_loop(unsettled, one_chunk, carry)[2]
    return token, token >= 0


def pair_rank(t: LookupTables, left: Array, right: Array, ask: Array) -> Array:
    """int32: rank of the merge of two tokens, R (one above the last) where there is none or where `ask` is False."""
    none = t.product.shape[0] - 1
    left = jnp.where(ask, left, 0).astype(jnp.uint32)
    right = jnp.where(ask, right, 0).astype(jnp.uint32)
    row = t.pair.row_of((left, right))
    low, high = t.pair.rows[row, 0], t.pair.rows[row, 1]
    same = (low == (left | (right & 0xFFF) << 20)) & ((high & 0xFF) == right >> 12)
    return jnp.where(ask & same, (high >> 8).astype(jnp.int32), none)


def reach(t: LookupTables, table: HashTable, token: Array, byte: Array) -> Array:
    """int32: lowest rank of a merge that takes the token together with something beyond that begins at `byte`.

    `table` is t.left_reach (the token is on the left) or t.right_reach; R where no merge does, which is always so for
    the byte 0xFF.
    """
    key = token.astype(jnp.uint32) | byte.astype(jnp.uint32) << 20
    row = fence(t.known, table.row_of((key,)))
    return jnp.where(table.rows[row, 0] == key, table.rows[row, 1].astype(jnp.int32), t.product.shape[0] - 1)
