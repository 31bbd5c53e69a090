"""The byte-level alphabet: how a tokenizer.json writes bytes as characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A printable byte stands for itself; the others follow from U+0100 on, in order.  That is ByteLevel of `tokenizers`.
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = tuple(sorted(set(range(256)) - set(_PRINTABLE)))
_BYTE_OF = np.full(0x100 + len(_OTHERS) + 1, -1, np.int16)  # the last entry stands for every character above
_BYTE_OF[list(_PRINTABLE)] = _PRINTABLE
_BYTE_OF[0x100 : 0x100 + len(_OTHERS)] = _OTHERS
_CHAR_OF = {int(b): chr(c) for c, b in enumerate(_BYTE_OF) if b >= 0}


def written(token: bytes) -> str:
    """The characters that stand for the bytes."""
    return "".join([_CHAR_OF[b] for b in token])


def read(tokens: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes of many written tokens at once.

    Returns:
      (blob uint8[*], offsets int64[n + 1], ok bool[n]): token i is `blob[offsets[i]:offsets[i + 1]]` if `ok[i]`;
      otherwise it holds a character outside the alphabet, and its bytes mean nothing.

    Raises:
      UnicodeEncodeError: a token holds half a surrogate pair.
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    codes = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32)
    values = _BYTE_OF[np.minimum(codes, len(_BYTE_OF) - 1)]
    bad = np.searchsorted(offsets, np.flatnonzero(values < 0), side="right") - 1
    ok = np.ones(len(tokens), bool)
    ok[bad] = False
    return values.astype(np.uint8), offsets, ok


def by_id(tokens: Sequence[bytes], ids: np.ndarray, n_ids: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens laid out by id: (blob uint8[*], offsets int64[n_ids + 1]); ids without a token have length 0."""
    lengths = np.zeros(n_ids, np.int64)
    lengths[ids] = np.fromiter(map(len, tokens), np.int64, len(tokens))
    order = np.argsort(ids, kind="stable").tolist()
    blob = np.frombuffer(b"".join([tokens[i] for i in order]), np.uint8)
    return blob, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
