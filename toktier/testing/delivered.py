"""Faults planted in delivered ids: what a broken session, cache or wire would hand to a caller.

substitution   one id is another
deletion       one id is missing
duplication    one id comes twice
swap           two neighbours change places
resplit        pairs of tokens near the end are cut elsewhere: the same bytes and, where the vocabulary has such a cut,
               the same number of ids, so that neither decoding nor a look at the length would find it
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toktier.errors import InputError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

KINDS = ("substitution", "deletion", "duplication", "swap", "resplit")
_PAIRS = 4  # pairs of tokens that a resplit cuts elsewhere, at most


class Planted(NamedTuple):
    """Wrong ids: the kind of fault, the first index that differs from the right ones, and all of them, int32[k]."""

    kind: str
    position: int
    ids: np.ndarray


class DeliveredFaults:
    """Plants faults in ids of one tokenizer.

    >>> import random, toktier
    >>> tok = toktier.load("o200k_base")
    >>> faults = DeliveredFaults(tok)
    >>> right = tok.encode("The pipeline is full")
    >>> right.tolist(), faults.plant("swap", right, random.Random(1)).ids.tolist()
    ([976, 29412, 382, 3149], [29412, 976, 382, 3149])
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._spec = tokenizer.spec
        ends = self._spec.token_offsets.tolist()
        blob = self._spec.token_blob.tobytes()
        self._id_of = {blob[a:b]: i for i, (a, b) in enumerate(itertools.pairwise(ends)) if a < b}
        self._known = sorted({*self._id_of.values(), *(token.id for token in self._spec.added)})

    def plant(self, kind: str, ids: np.ndarray, rng: random.Random) -> Planted | None:
        """A copy of the ids with a fault of this kind in it; None where they have no place for one.

        Args:
          kind: of KINDS.  ids: int[k], the right ones.  rng: chooses the place.

        Raises:
          InputError: a kind that is not known.
        """
        if kind not in KINDS:
            raise InputError(f"kind={kind!r} is not known: use one of {', '.join(KINDS)}")
        right = np.asarray(ids, np.int32)
        wrong = _MAKE[kind](self, right.tolist(), rng) if len(right) else None
        if wrong is None:
            return None
        made = np.array(wrong, np.int32)
        n = min(len(made), len(right))
        differ = np.flatnonzero(made[:n] != right[:n])
        position = int(differ[0]) if len(differ) else n
        assert len(differ) or len(made) != len(right)
        return Planted(kind, position, made)

    def _substitution(self, ids: list[int], rng: random.Random) -> list[int] | None:
        at = rng.randrange(len(ids))
        others = [other for other in rng.sample(self._known, min(2, len(self._known))) if other != ids[at]]
        return [*ids[:at], others[0], *ids[at + 1 :]] if others else None

    def _deletion(self, ids: list[int], rng: random.Random) -> list[int]:
        at = rng.randrange(len(ids))
        return ids[:at] + ids[at + 1 :]

    def _duplication(self, ids: list[int], rng: random.Random) -> list[int]:
        at = rng.randrange(len(ids))
        return [*ids[: at + 1], *ids[at:]]

    def _swap(self, ids: list[int], rng: random.Random) -> list[int] | None:
        places = [k for k, (a, b) in enumerate(itertools.pairwise(ids)) if a != b]
        if not places:
            return None
        at = rng.choice(places)
        return [*ids[:at], ids[at + 1], ids[at], *ids[at + 2 :]]

    def _resplit(self, ids: list[int], rng: random.Random) -> list[int] | None:
        made, left, at = list(ids), rng.randint(1, _PAIRS), len(ids) - 2
        while left and at >= 0:
            if (pair := self._cut_elsewhere(made[at], made[at + 1], rng)) is None:
                at -= 1
            else:
                made[at : at + 2] = pair
                left, at = left - 1, at - 2
        if made != ids:
            return made
        for at in range(len(ids) - 1, -1, -1):  # no pair has another cut: a token in two, one id more
            raw = self._bytes(ids[at])
            for cut in range(1, len(raw)):
                if raw[:cut] in self._id_of and raw[cut:] in self._id_of:
                    return [*ids[:at], self._id_of[raw[:cut]], self._id_of[raw[cut:]], *ids[at + 1 :]]
        return None

    def _cut_elsewhere(self, a: int, b: int, rng: random.Random) -> list[int] | None:
        """Two other tokens with the same bytes together."""
        first, second = self._bytes(a), self._bytes(b)
        if not first or not second:  # an added token
            return None
        raw = first + second
        cuts = [c for c in range(1, len(raw)) if c != len(first) and raw[:c] in self._id_of and raw[c:] in self._id_of]
        if not cuts:
            return None
        cut = rng.choice(cuts)
        return [self._id_of[raw[:cut]], self._id_of[raw[cut:]]]

    def _bytes(self, token: int) -> bytes:
        return self._spec.token_bytes(token) if token < self._spec.n_ids else b""


_MAKE: dict[str, Callable[[DeliveredFaults, list[int], random.Random], list[int] | None]] = {
    "substitution": DeliveredFaults._substitution,
    "deletion": DeliveredFaults._deletion,
    "duplication": DeliveredFaults._duplication,
    "swap": DeliveredFaults._swap,
    "resplit": DeliveredFaults._resplit,
}
