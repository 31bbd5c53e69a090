"""The slow twin of the BPE engines: the definition, one merge at a time.

`merge` is byte-pair encoding as it is defined: of all neighbours that may merge, the pair of lowest rank goes first,
the leftmost of equals; then look again.  Every fast path (`toktier/host`, `toktier/device.py`) must give the same
tokens; the tests compare all three with the reference.  Quadratic on purpose: there is nothing here to get wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from toktier.errors import InputError
from toktier.spec import Spec

Rule = Callable[[int, int], tuple[int, int] | None]
"""(left id, right id) -> (rank, id of the product), or None where the two never merge."""


def merge(tokens: Iterable[int], rank: Rule) -> list[int]:
    """Merge until no two neighbours may merge.

    Example:
      >>> rules = {(0, 1): (0, 3), (3, 2): (1, 4)}
      >>> merge([0, 1, 2, 1], lambda a, b: rules.get((a, b)))
      [4, 1]
    """
    tokens = list(tokens)
    while True:
        best = None
        for i in range(len(tokens) - 1):
            found = rank(tokens[i], tokens[i + 1])
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], i, found[1])
        if best is None:
            return tokens
        _, i, product = best
        tokens[i : i + 2] = [product]


def listed_rule(merges: Sequence[Sequence[int]]) -> Rule:
    """Only listed pairs merge: row = rank, `(left, right, product)`.  A pair listed twice has its last rank."""
    table = {(int(left), int(right)): (rank, int(product)) for rank, (left, right, product) in enumerate(merges)}
    return lambda left, right: table.get((left, right))


def ranks_rule(token_of: dict[bytes, int], bytes_of: dict[int, bytes]) -> Rule:
    """Any two neighbours merge whose bytes are a token; the rank is that token's id."""

    def rank(left: int, right: int) -> tuple[int, int] | None:
        product = token_of.get(bytes_of[left] + bytes_of[right])
        return None if product is None else (product, product)

    return rank


class _Vocabulary:
    """The dictionaries of one spec."""

    def __init__(self, spec: Spec):
        self.bytes_of = {t: spec.token_bytes(t) for t in range(spec.n_ids) if spec.token_bytes(t)}
        self.token_of = {b: t for t, b in self.bytes_of.items()}
        listed = spec.merge_rule == "listed"
        self.rule = listed_rule(spec.merges.tolist()) if listed else ranks_rule(self.token_of, self.bytes_of)


@functools.lru_cache(maxsize=4)
def _vocabulary(spec: Spec) -> _Vocabulary:
    return _Vocabulary(spec)


def encode_piece(spec: Spec, piece: bytes) -> list[int]:
    """Ids of one piece, straight from the spec.

    Args:
      spec: a byte-level BPE specification (`spec.reason` is empty).
      piece: raw bytes of one pre-token.

    Raises:
      InputError: the piece holds a byte that no token of the vocabulary stands for.
    """
    vocabulary = _vocabulary(spec)
    if spec.ignore_merges and piece in vocabulary.token_of:
        return [vocabulary.token_of[piece]]
    tokens = []
    for at, byte in enumerate(piece):
        token = vocabulary.token_of.get(bytes([byte]))
        if token is None:
            raise InputError(
                f"piece: byte 0x{byte:02x} at offset {at} has no token in {spec.name!r}; "
                "such a vocabulary runs on the reference (spec.reason says so)"
            )
        tokens.append(token)
    return merge(tokens, vocabulary.rule)
