"""All tables of one vocabulary: what the host engine reads and what the device program reads, as plain arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from toktier.bpe import perfect_hash
from toktier.bpe.char_start import character_starts, edge_bytes
from toktier.bpe.effective import effective_merges
from toktier.bpe.perfect_hash import PerfectHash
from toktier.spec import Spec

WORD_BYTES = 16  # a piece of up to this many bytes is one key: four words and its length
NONE = -1
VERSION = 4  # of the layout; part of the cache key
# Vocabularies of up to 222,000 tokens get tables of one shape, and so share one compiled program.
LEAST_SLOT_BITS = 18
LEAST_CHAIN_BITS = 15


@dataclasses.dataclass(frozen=True, eq=False)
class BpeTables:
    """Tables of one vocabulary.

    Attributes:
      pairs: int32[R, 2], effective merges in rank order (rank = row); product: int32[R].
      byte_token: int32[256], -1 where a byte has no token.
      whole: bool[n_ids], a whole piece with this token's bytes is this token.
      token_length: int32[n_ids] in bytes; token_blob, token_offsets: the bytes themselves.
      min_left, min_right: int32[n_ids], lowest rank of a merge with the token on its left / right side (R if none).
      left_reach_hash, left_reach_rows: uint32[slots, 2]: token | byte << 20, and the lowest rank of a merge (token, y)
        where y begins with that byte; right_reach_hash, right_reach_rows: of a merge (x, token) where x ends with it.
      orderly: bool[R], every merge that uses this one's product ranks above it.
      piece_hash, piece_rows: uint32[slots, 5]: four words of a piece of at most 16 bytes (little endian, zero padded)
        and `length << 20 | id`; an empty slot holds length 0.
      chain_hash, chain_rows: uint32[slots, 7]: longer pieces, 16 bytes a step: state, four words, length of the chunk,
        and the next state or, with bit 31, the id of the whole piece.
      pair_hash, pair_rows: uint32[slots, 2]: left | (right & 0xFFF) << 20, and right >> 12 | rank << 8; a free slot is
        all ones.
      byte_pair_rank: int32[65536], rank of the merge of two bytes `first << 8 | second`, R if none.
      char_block, char_start: see char_start.py.
      longest: bytes of the longest token that can come out.
    """

    pairs: np.ndarray
    product: np.ndarray
    byte_token: np.ndarray
    whole: np.ndarray
    token_length: np.ndarray
    token_blob: np.ndarray
    token_offsets: np.ndarray
    min_left: np.ndarray
    min_right: np.ndarray
    left_reach_hash: PerfectHash
    left_reach_rows: np.ndarray
    right_reach_hash: PerfectHash
    right_reach_rows: np.ndarray
    orderly: np.ndarray
    piece_hash: PerfectHash
    piece_rows: np.ndarray
    chain_hash: PerfectHash
    chain_rows: np.ndarray
    pair_hash: PerfectHash
    pair_rows: np.ndarray
    byte_pair_rank: np.ndarray
    char_block: np.ndarray
    char_start: np.ndarray
    longest: int
    ignore_merges: bool

    @property
    def n_ids(self) -> int:
        """One more than the largest id of the model."""
        return len(self.token_length)

    @property
    def only_whole(self) -> np.ndarray:
        """bool[n_ids]: tokens that a whole piece is, but that no merges make."""
        made = np.zeros(self.n_ids, bool)
        made[self.product] = True
        made[self.byte_token[self.byte_token >= 0]] = True
        return self.whole & ~made

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Flat dict of arrays, for the cache."""
        arrays: dict[str, np.ndarray] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, PerfectHash):
                arrays[field.name + ".displacement"] = value.displacement
                arrays[field.name + ".bits"] = np.array([value.bucket_bits, value.slot_bits, value.seed], np.int64)
            else:
                arrays[field.name] = np.asarray(value)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> BpeTables:
        """Inverse of `to_arrays`."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name.endswith("_hash"):
                bits = arrays[field.name + ".bits"]
                values[field.name] = PerfectHash(arrays[field.name + ".displacement"], *(int(b) for b in bits))
            else:
                values[field.name] = arrays[field.name]
        values["longest"] = int(values["longest"])
        values["ignore_merges"] = bool(values["ignore_merges"])
        return cls(**values)


def build(spec: Spec) -> BpeTables:
    """Tables of a byte-level BPE spec (`spec.reason == ""`); 1 to 2 s for 200,000 tokens."""
    pairs, product, reachable, byte_token = effective_merges(spec)
    lengths = np.diff(spec.token_offsets).astype(np.int32)
    whole = (lengths > 0) & (np.ones_like(reachable) if spec.ignore_merges else reachable)
    count = len(pairs)
    rank = np.arange(count, dtype=np.int32)
    min_left, min_right = np.full((2, spec.n_ids), count, np.int32)
    np.minimum.at(min_left, pairs[:, 0], rank)
    np.minimum.at(min_right, pairs[:, 1], rank)
    first, last = edge_bytes(spec.token_blob, spec.token_offsets)
    left_reach_hash, left_reach_rows = _reach_table(pairs[:, 0], first[pairs[:, 1]])
    right_reach_hash, right_reach_rows = _reach_table(pairs[:, 1], last[pairs[:, 0]])
    piece_hash, piece_rows = _piece_table(spec, np.nonzero(whole & (lengths <= WORD_BYTES))[0])
    chain_hash, chain_rows = _chain_table(spec, np.nonzero(whole & (lengths > WORD_BYTES))[0])
    pair_hash, pair_rows = _pair_table(pairs)
    char_block, char_start = character_starts(spec.token_blob, spec.token_offsets, pairs, product, byte_token)
    emitted = whole | reachable
    return BpeTables(
        pairs=pairs,
        product=product,
        byte_token=byte_token,
        whole=whole,
        token_length=lengths,
        token_blob=spec.token_blob,
        token_offsets=spec.token_offsets,
        min_left=min_left,
        min_right=min_right,
        left_reach_hash=left_reach_hash,
        left_reach_rows=left_reach_rows,
        right_reach_hash=right_reach_hash,
        right_reach_rows=right_reach_rows,
        orderly=np.minimum(min_left, min_right)[product] > rank,
        piece_hash=piece_hash,
        piece_rows=piece_rows,
        chain_hash=chain_hash,
        chain_rows=chain_rows,
        pair_hash=pair_hash,
        pair_rows=pair_rows,
        byte_pair_rank=_byte_pair_rank(pairs, byte_token),
        char_block=char_block,
        char_start=char_start,
        longest=int(lengths[emitted].max(initial=1)),
        ignore_merges=spec.ignore_merges,
    )


def chunk_words(spec: Spec, tokens: np.ndarray, start: int) -> np.ndarray:
    """uint32[n, 4]: bytes start .. start+16 of each token, little endian, zero padded."""
    columns = start + np.arange(WORD_BYTES)
    lengths = np.diff(spec.token_offsets)[tokens]
    at = np.minimum(spec.token_offsets[tokens][:, None] + columns, len(spec.token_blob) - 1)
    raw = np.where(columns < lengths[:, None], spec.token_blob[at], 0).astype(np.uint8)
    return np.ascontiguousarray(raw).view("<u4").astype(np.uint32)


def _piece_table(spec: Spec, tokens: np.ndarray) -> tuple[PerfectHash, np.ndarray]:
    lengths = np.diff(spec.token_offsets)[tokens].astype(np.uint32)
    words = chunk_words(spec, tokens, 0)
    hashed, slot = perfect_hash.build(np.concatenate([words, lengths[:, None]], 1), LEAST_SLOT_BITS)
    rows = np.zeros((1 << hashed.slot_bits, 5), np.uint32)
    rows[slot, :4] = words
    rows[slot, 4] = lengths << 20 | tokens.astype(np.uint32)
    return hashed, rows


def _chain_table(spec: Spec, tokens: np.ndarray) -> tuple[PerfectHash, np.ndarray]:
    """A trie over 16-byte chunks: state 0 is the start, every other state a distinct prefix of full chunks."""
    lengths = np.diff(spec.token_offsets)[tokens]
    state = np.zeros(len(tokens), np.int64)
    rows: list[np.ndarray] = []
    states, start = 1, 0
    while len(tokens):
        words = chunk_words(spec, tokens, start)
        here = np.minimum(lengths - start, WORD_BYTES)
        ends = lengths <= start + WORD_BYTES
        final = np.concatenate(
            [state[ends, None], words[ends], here[ends, None], tokens[ends, None] | np.int64(1 << 31)], 1
        )
        # a full chunk that goes on leads to the state of its prefix; length 0 marks "goes on", so it meets no final
        key, inverse = np.unique(np.concatenate([state[~ends, None], words[~ends]], 1), axis=0, return_inverse=True)
        inner = np.concatenate([key, np.zeros((len(key), 1), np.int64), states + np.arange(len(key))[:, None]], 1)
        rows += [final, inner]
        state, tokens, lengths = states + inverse.reshape(-1), tokens[~ends], lengths[~ends]
        states += len(key)
        start += WORD_BYTES
    table = np.concatenate(rows).astype(np.uint32) if rows else np.zeros((0, 7), np.uint32)
    hashed, slot = perfect_hash.build(table[:, :6], LEAST_CHAIN_BITS)
    out = np.full((1 << hashed.slot_bits, 7), 0xFFFFFFFF, np.uint32)
    out[slot] = table
    return hashed, out


def _pair_table(pairs: np.ndarray) -> tuple[PerfectHash, np.ndarray]:
    left, right = pairs[:, 0].astype(np.uint32), pairs[:, 1].astype(np.uint32)
    rank = np.arange(len(pairs), dtype=np.uint32)
    hashed, slot = perfect_hash.build(np.stack([left, right], 1), LEAST_SLOT_BITS)
    rows = np.full((1 << hashed.slot_bits, 2), 0xFFFFFFFF, np.uint32)
    rows[slot, 0] = left | (right & 0xFFF) << 20
    rows[slot, 1] = right >> 12 | rank << 8
    return hashed, rows


def _reach_table(token: np.ndarray, byte: np.ndarray) -> tuple[PerfectHash, np.ndarray]:
    """Lowest rank (= row) for each pair of a token and a byte beyond it."""
    key, rank = np.unique(token.astype(np.uint32) | byte.astype(np.uint32) << 20, return_index=True)
    hashed, slot = perfect_hash.build(key[:, None], LEAST_SLOT_BITS)
    rows = np.full((1 << hashed.slot_bits, 2), 0xFFFFFFFF, np.uint32)
    rows[slot, 0] = key
    rows[slot, 1] = rank
    return hashed, rows


def _byte_pair_rank(pairs: np.ndarray, byte_token: np.ndarray) -> np.ndarray:
    table = np.full(1 << 16, len(pairs), np.int32)
    byte_of = {int(t): b for b, t in enumerate(byte_token) if t >= 0}
    singles = np.isin(pairs, byte_token[byte_token >= 0]).all(1)
    for rank in np.nonzero(singles)[0]:
        table[byte_of[int(pairs[rank, 0])] << 8 | byte_of[int(pairs[rank, 1])]] = rank
    return table
