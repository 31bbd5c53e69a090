"""Pieces that are one token: looked up many at a time in the device's perfect hash tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toktier.bpe import perfect_hash
from toktier.bpe.tables import WORD_BYTES, BpeTables

NONE = -1
_ID = np.uint32((1 << 20) - 1)


def find_whole(tables: BpeTables, pieces: Sequence[bytes]) -> np.ndarray:
    """int32[len(pieces)]: the token that a whole piece is, NONE where it is none."""
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    out = np.full(len(pieces), NONE, np.int32)
    is_short = lengths <= WORD_BYTES
    short = np.flatnonzero(is_short)
    if len(short):
        words = _words([pieces[i] for i in short.tolist()] if len(short) < len(pieces) else pieces, WORD_BYTES)
        out[short] = _find_short(tables, words[:, 0], lengths[short].astype(np.uint32))
    long = np.flatnonzero(~is_short & (lengths <= tables.longest))
    if len(long):
        width = -(-tables.longest // WORD_BYTES) * WORD_BYTES
        out[long] = _find_long(tables, _words([pieces[i] for i in long.tolist()], width), lengths[long])
    return out


def _words(pieces: Sequence[bytes], width: int) -> np.ndarray:
    """uint32[n, width / 16, 4]: the bytes of each piece, zero padded."""
    packed = b"".join([p.ljust(width, b"\0") for p in pieces])
    return np.frombuffer(packed, "<u4").reshape(len(pieces), width // WORD_BYTES, 4).astype(np.uint32, copy=False)


def _find_short(tables: BpeTables, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    slot = perfect_hash.slots(tables.piece_hash, (*words.T, lengths))
    rows = tables.piece_rows[slot]
    same = (rows[:, :4] == words).all(1) & (rows[:, 4] >> 20 == lengths)
    return np.where(same, (rows[:, 4] & _ID).astype(np.int32), np.int32(NONE))


def _find_long(tables: BpeTables, words: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Walk the trie of 16-byte chunks, all pieces side by side."""
    out = np.full(len(words), NONE, np.int32)
    alive, state = np.arange(len(words)), np.zeros(len(words), np.uint32)
    for step in range(words.shape[1]):
        rest = lengths[alive] - step * WORD_BYTES
        last = rest <= WORD_BYTES
        chunk = np.where(last, rest, 0).astype(np.uint32)  # length 0 marks a chunk with more behind it
        key = np.column_stack([state, words[alive, step], chunk])
        rows = tables.chain_rows[perfect_hash.slots(tables.chain_hash, tuple(key.T))]
        same = (rows[:, :6] == key).all(1)
        done = same & last
        out[alive[done]] = (rows[done, 6] & _ID).astype(np.int32)
        goes_on = same & ~last
        alive, state = alive[goes_on], rows[goes_on, 6]
        if not len(alive):
            break
    return out
