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
    strings = [_string(tokenizer, token) for token in distinct.tolist()]
    return [strings[k] for k in at.tolist()]


def _string(tokenizer: Tokenizer, token: int) -> str:
    spec = tokenizer.spec
    if spec.reason and spec.reference == "tokenizers":
        return str(tokenizer.core.reference.native.id_to_token(token))  # type: ignore[attr-defined]
    for known in (_added(tokenizer), dict(spec.unwritten)):
        if token in known:
            return known[token]
    alphabet = _alphabet()
    return "".join([alphabet[b] for b in tokenizer.token_bytes(token)])


def _added(tokenizer: Tokenizer) -> dict[int, str]:
    return {t.id: t.content for t in tokenizer.spec.added}


@functools.cache
def _alphabet() -> list[str]:
    return [char for _, char in sorted((byte, char) for char, byte in byte_of_char().items())]
