"""Characters that BPE may start from instead of bytes.

Most multi-byte characters of a vocabulary's own languages are one token, and their inner merges happen before anything
reaches them from outside.  Starting from such characters leaves a third of the tokens of Chinese text and the merges of
single characters out.  A character c with the derivation ranks r1, r2, ... and R = max(r) is a safe start if

* no merge (x, part) with rank <= R takes a part at its left edge, x being any token that can end before the character;
* no merge (part, y) with rank <= R takes a part at its right edge, y being any token that can begin behind it;
* every merge that uses c itself ranks above R.

Then some inner merge of rank <= R is always due before any that crosses the edge, and c is complete before it is used,
so doing the inner merges first changes nothing (docs/merges.md).  What can stand before matters: " " + lead byte is an
early merge in many vocabularies, so "after ASCII", "after a multi-byte character" and "at the head of the piece" are
told apart.
"""

from __future__ import annotations

import itertools

import numpy as np

AFTER_ASCII, AFTER_MULTI, AT_HEAD = 1 << 20, 1 << 21, 1 << 22
TOKEN_MASK = (1 << 20) - 1
_NEVER = np.int64(1) << 40


def character_starts(
    blob: np.ndarray, offsets: np.ndarray, pairs: np.ndarray, product: np.ndarray, byte_token: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Two-stage table by code point.

    Returns:
      block uint16[0x1100], value int32[n_blocks * 256]: token id | AFTER_ASCII | AFTER_MULTI | AT_HEAD, each flag
      saying that the character may be started from in that place; 0 where it may not be anywhere.
    """
    rank_of = {(int(a), int(b)): r for r, (a, b) in enumerate(pairs)}
    lengths = np.diff(offsets)
    first, last = edge_bytes(blob, offsets)
    n = len(lengths)
    left, right = pairs[:, 0], pairs[:, 1]
    rank = np.arange(len(pairs))

    def lowest(member: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Lowest rank of any pair in `where` with each token as its member."""
        table = np.full(n, _NEVER)
        np.minimum.at(table, member[where], rank[where])
        return table

    continuation = (last[left] & 0xC0) == 0x80
    taken_after_multi = lowest(right, continuation)
    taken_after_ascii = lowest(right, last[left] < 0x80)
    taken_behind = lowest(left, (first[right] & 0xC0) != 0x80)
    used = np.minimum(lowest(left, rank >= 0), lowest(right, rank >= 0))

    table = np.zeros(0x110000, np.int32)
    for token in np.nonzero((lengths >= 2) & (lengths <= 4) & (first >= 0xC2))[0]:
        raw = blob[offsets[token] : offsets[token + 1]].tobytes()
        try:
            char = raw.decode()
        except UnicodeDecodeError:
            continue
        if len(char) == 1:
            derivation = _derive([int(byte_token[b]) for b in raw], rank_of, product)
            if derivation is not None and derivation[0] == token:
                _, top, heads, tails = derivation
                if used[token] > top and all(taken_behind[t] > top for t in tails):
                    flags = AT_HEAD
                    flags |= AFTER_ASCII if all(taken_after_ascii[t] > top for t in heads) else 0
                    flags |= AFTER_MULTI if all(taken_after_multi[t] > top for t in heads) else 0
                    table[ord(char)] = token | flags
    rows = table.reshape(-1, 256)
    used = np.nonzero(rows.any(1))[0]  # block 0 is the empty one, which most blocks are
    block = np.zeros(len(rows), np.uint16)
    block[used] = 1 + np.arange(len(used))
    return block, np.concatenate([np.zeros((1, 256), np.int32), rows[used]]).reshape(-1)


def edge_bytes(blob: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last byte of every token (0xFF, which no text holds, for a gap)."""
    full = np.diff(offsets) > 0
    first, last = np.full(len(full), 0xFF, np.uint8), np.full(len(full), 0xFF, np.uint8)
    first[full] = blob[offsets[:-1][full]]
    last[full] = blob[offsets[1:][full] - 1]
    return first, last


def _derive(tokens: list[int], rank_of: dict, product: np.ndarray) -> tuple[int, int, set[int], set[int]] | None:
    """BPE of one character: (token, highest rank used, parts seen at the left edge, parts seen at the right edge)."""
    top, heads, tails = -1, {tokens[0]}, {tokens[-1]}
    while len(tokens) > 1:
        rank, at = min((rank_of.get(p, 1 << 40), i) for i, p in enumerate(itertools.pairwise(tokens)))
        if rank == 1 << 40:
            return None
        tokens[at : at + 2] = [int(product[rank])]
        top = max(top, rank)
        if len(tokens) > 1:
            heads.add(tokens[0])
            tails.add(tokens[-1])
    return tokens[0], top, heads, tails
