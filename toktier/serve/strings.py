"""Tokens as strings, as a vocabulary file writes them: what vLLM's `token_strs` are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from toktier.decode import byte_of_char

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer


def token_strings(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    """The string of each id, int32[n].

    Of a tokenizer.json those of its vocabulary, where byte-level tokens are written in an alphabet of 256 characters
    ("Ġworld" for " world").  The tokens of a rank file are bytes; they are written in the same alphabet, so nothing of
    them is lost.
    """
    distinct, at = np.unique(ids, return_inverse=True)
    spec = tokenizer.spec
    if spec.reason and spec.reference == "tokenizers":
        native = tokenizer.core.reference.native  # type: ignore[attr-defined]
        strings = [str(native.id_to_token(token)) for token in distinct.tolist()]
    else:
        known = {**dict(spec.unwritten), **{t.id: t.content for t in spec.added}}
        strings = [known[k] if k in known else _written(tokenizer.token_bytes(k)) for k in distinct.tolist()]
    return [strings[k] for k in at.tolist()]


def _written(token: bytes) -> str:
    alphabet = _alphabet()
    return "".join([alphabet[b] for b in token])


@functools.cache
def _alphabet() -> list[str]:
    return [char for _, char in sorted((byte, char) for char, byte in byte_of_char().items())]
