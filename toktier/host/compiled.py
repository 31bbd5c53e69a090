"""Merges of whole texts, or of many pieces, by tiktoken's compiled loop over the effective merges of any vocabulary.

tiktoken merges the two neighbours whose joined bytes have the lowest number, leftmost of equals.  Given the products of
the effective merges, each numbered by its rank, that is this vocabulary's own BPE, whichever rule it came with: an
effective merge is the only pair that ever stands where its product may be made (docs/merges.md, 1).  It knows nothing
of pre-tokenizers: pieces go in with a zero byte between them, which its pattern leaves out.  It is built where much is
to come, for it takes some 0.3 s and 50 MB.

The premise is proved, and watched all the same: pieces are merged in plain Python too when it is made, and one in
`WATCHED` afterwards; a difference ends its use.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from toktier.bpe.tables import BpeTables

if TYPE_CHECKING:
    import tiktoken

LONGEST = 1 << 16  # bytes of a piece; longer ones are few, and take no more than in proportion elsewhere
WATCHED = 4096
_BETWEEN = b"\0"  # stands between the pieces of one call, and in none of them
_NEVER = "\0never\0"  # a special token that no call allows
_FIRST = 64  # pieces compared before the first use
_SHORT = 96  # bytes of a piece that is compared
_LOOKED_AT = 64  # pieces of a text among which it is looked for


def effective_ranks(tables: BpeTables) -> dict[bytes, int]:
    """The number of each product of an effective merge, and of each byte behind them."""
    offsets, blob = tables.token_offsets.tolist(), tables.token_blob.tobytes()
    products = tables.product.tolist()
    ranks = {blob[offsets[t] : offsets[t + 1]]: rank for rank, t in enumerate(products)}
    ranks.update({bytes([b]): len(products) + b for b in range(256)})
    return ranks


def loop(ranks: dict[bytes, int], pattern: str) -> tiktoken.Encoding:
    """tiktoken's loop over numbered tokens and the pieces that a pattern finds."""
    import tiktoken

    # with no special token at all, tiktoken would look for one in front of every character
    never = {_NEVER: 1 + max(ranks.values())}
    return tiktoken.Encoding("effective merges", pat_str=pattern, mergeable_ranks=ranks, special_tokens=never)


def ranks_of(encoding: tiktoken.Encoding, text: str) -> np.ndarray:
    """uint32: the numbers of a text's tokens; an array takes half the time of a list."""
    return encoding.encode_to_numpy(text, disallowed_special=())


class CompiledMerger:
    """BPE of pieces in order.  Safe from any thread; the interpreter is free meanwhile.

    Args:
      tables: the vocabulary.
      plain: ids of one piece that is no token as a whole, by other means, to compare with.
      whole_only: packed id of each token that no merges make.
      ranks: of `effective_ranks`, where they are at hand.

    Attributes:
      ids: int32, the id of each effective merge's product, and of each byte behind them.
      usable: was no difference found?
    """

    def __init__(
        self,
        tables: BpeTables,
        plain: Callable[[bytes], list[int]],
        whole_only: dict[bytes, bytes] | None = None,
        ranks: dict[bytes, int] | None = None,
    ) -> None:
        ranks = effective_ranks(tables) if ranks is None else ranks
        self._encoding = loop(ranks, r"[^\x00]+")
        self.ids = np.concatenate([tables.product, tables.byte_token]).astype(np.int32)
        self._length = np.ascontiguousarray(tables.token_length, np.int64)
        self._rank_length = np.concatenate([self._length[tables.product], np.ones(256, np.int64)])
        self._plain = plain
        self._until = WATCHED
        self._whole_only = _WholeOnly(whole_only or {}, plain, tables.n_ids)
        some = list(itertools.islice(ranks, 0, len(ranks), max(1, len(ranks) // _FIRST)))
        pieces = [a + b for a, b in itertools.pairwise(some) if fits(a + b)]
        self.usable = all(self._watch(p, ids) for p, ids in zip(pieces, self.encode(pieces), strict=True))

    def encode(self, pieces: Sequence[bytes]) -> list[bytes]:
        """Packed int32 ids of each piece; all of them `fit`, and no whole token is among them but what merges make."""
        if not pieces:
            return []
        ids, stops = self.merge(pieces)
        at = (4 * stops).tolist()
        packed = ids.tobytes()
        found = [packed[i:j] for i, j in zip([0, *at], at, strict=False)]
        if self._due(len(pieces)) and not self._watch(pieces[0], found[0]):
            self.usable = False
            return [array("i", self._plain(p)).tobytes() for p in pieces]
        return found

    def merge(self, pieces: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of pieces, int32 and joined, and how many there are up to the end of each piece, int64[k].

        As for `encode`, but without comparing any.
        """
        ranks = ranks_of(self._encoding, _BETWEEN.join(pieces).decode())
        stops = np.fromiter(map(len, pieces), np.int64, len(pieces)).cumsum()
        return self.ids.take(ranks), self._rank_length.take(ranks).cumsum().searchsorted(stops, "right")

    def encode_words(self, pieces: list[str]) -> np.ndarray | None:
        """int32: the ids of pieces, joined; None where they cannot be told.

        Args:
          pieces: none is longer than `LONGEST` bytes, and none holds a zero byte.
        """
        ids = self.completed(self._merged("\0".join(pieces)), lambda: pieces)
        if ids is None:
            return None
        if self._due(len(pieces)) and not self._agrees(ids, [p.encode() for p in pieces[:_LOOKED_AT]]):
            return None
        return ids

    def completed(self, ids: np.ndarray, pieces: Callable[[], list[str] | None]) -> np.ndarray | None:
        """What merging made of a short text's pieces, with tokens that no merges make.

        Args:
          ids: int32, joined.  pieces: gives them, and is only called where such a token may be missing.

        Returns:
          int32; None where there are no pieces to be had.
        """
        if not self._whole_only.stands_in(ids):
            return ids
        found = pieces()
        if found is None:
            return None
        encoded = list(map(str.encode, found))
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return self._whole_only.put(ids, self._length, sizes, encoded.__getitem__)

    def encode_text(self, raw: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
        """int32: the ids of a text in pieces, joined; None where they cannot be told.

        Args:
          raw: uint8[n], UTF-8; every byte outside the pieces is 0xFF, and none is zero.
          starts, ends: int64[k], the pieces.
        """
        if not takes(starts, ends):
            return None
        text = raw.copy()
        text[text == 0xFF] = 0
        begin, end = int(starts[0]), int(ends[-1])
        return self.checked(self._merged(_sewn(text[begin:end], starts - begin).decode()), raw, starts, ends)

    def checked(self, ids: np.ndarray, raw: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
        """What merging made of the pieces of a text, with whole tokens that no merges make; None after a difference."""
        if self._whole_only.may_hold(ids):
            piece = functools.partial(_piece, raw, starts, ends)
            ids = self._whole_only.put(ids, self._length, ends - starts, piece)
        if self._due(len(starts)):
            some = [_piece(raw, starts, ends, k) for k in range(min(len(starts), _LOOKED_AT))]
            if not self._agrees(ids, some):
                return None
        return ids

    def _merged(self, text: str) -> np.ndarray:
        """int32: the ids of pieces with zero bytes between them."""
        return self.ids.take(ranks_of(self._encoding, text))

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """int64: the bytes of each id."""
        return self._length.take(ids)

    def packed(self) -> np.ndarray:
        """int64: of each number the id, and its bytes from bit 32 on."""
        return self.ids | self._rank_length << 32

    def parts(self) -> np.ndarray | None:
        """uint8: whether a number's id is one of the two (1 the first, 2 the second, 3 either) that merges make of a
        token that they cannot make as a whole; None where they make every token."""
        if not self._whole_only.tokens:
            return None
        return self._whole_only.first[self.ids] + 2 * self._whole_only.second[self.ids].astype(np.uint8)

    def _due(self, count: int) -> bool:
        """Is it time to compare a piece?  Threads may lose a count, which matters little."""
        self._until -= count
        if self._until >= 0:
            return False
        self._until = WATCHED
        return True

    def _agrees(self, ids: np.ndarray, pieces: list[bytes]) -> bool:
        """Are the first ids those of the first pieces?  Only a short piece is compared; a difference ends the use."""
        before = 0
        for piece in pieces:
            if len(piece) <= _SHORT and piece not in self._whole_only.tokens:
                ends = self._length.take(ids[: before + len(piece)]).cumsum()
                first, last = np.searchsorted(ends, [before, before + len(piece)], "right").tolist()
                if not self._watch(piece, ids[first:last].tobytes()):
                    self.usable = False
                break
            before += len(piece)
        return self.usable

    def _watch(self, piece: bytes, found: bytes) -> bool:
        if (want := array("i", self._plain(piece)).tobytes()) == found:
            return True
        warnings.warn(
            f"tiktoken's loop over the effective merges made {list(array('i', found))} of {piece!r}, plain Python "
            f"{list(array('i', want))}: plain Python goes on alone. Please report this",
            RuntimeWarning,
            stacklevel=3,
        )
        return False


class _WholeOnly:
    """Tokens that a whole piece is, but no merges make; put where merging left other tokens for them."""

    def __init__(self, tokens: dict[bytes, bytes], plain: Callable[[bytes], list[int]], n_ids: int) -> None:
        self.tokens = tokens
        merged = {tuple(ids) for token in tokens if len(ids := plain(token)) > 1}
        self.first, self.second = np.zeros(n_ids, bool), np.zeros(n_ids, bool)
        self.first[[m[0] for m in merged]] = True
        self.second[[m[1] for m in merged]] = True
        # what merges make of them, by the first two and by how many there are
        self._merged: dict[tuple[int, ...], dict[int, set[tuple[int, ...]]]] = {}
        for m in merged:
            self._merged.setdefault(m[:2], {}).setdefault(len(m), set()).add(m)

    def may_hold(self, ids: np.ndarray) -> bool:
        """Could one of the tokens be missing among the ids?"""
        return bool(self.tokens) and bool((self.first.take(ids[:-1]) & self.second.take(ids[1:])).any())

    def stands_in(self, ids: np.ndarray) -> bool:
        """Is what merges make of one of the tokens among the ids?  For short texts: each place is looked at."""
        if not self.tokens:
            return False
        at = np.flatnonzero(self.first.take(ids[:-1]) & self.second.take(ids[1:])).tolist()
        known = ids.tolist() if at else []
        for i in at:
            for count, some in self._merged.get((known[i], known[i + 1]), {}).items():
                if tuple(known[i : i + count]) in some:
                    return True
        return False

    def put(self, ids: np.ndarray, length: np.ndarray, sizes: np.ndarray, piece: Callable[[int], bytes]) -> np.ndarray:
        """The ids of pieces, each piece that is one of the tokens by its own id.

        Args:
          ids: what merging made of the pieces.  length: bytes of each id.
          sizes: int64[k], bytes of each piece.  piece: the bytes of one.
        """
        at = np.flatnonzero(self.first.take(ids[:-1]) & self.second.take(ids[1:]))
        stops, before = sizes.cumsum(), length.take(ids).cumsum()
        begins = before[at] - length[ids[at]]
        which = np.searchsorted(stops, begins, "right")
        heads = begins == stops[which] - sizes[which]  # the two tokens stand where a piece begins
        kept, ids = np.ones(len(ids), bool), ids.copy()
        for i, k in zip(at[heads].tolist(), which[heads].tolist(), strict=True):
            if token := self.tokens.get(piece(k)):
                ids[i] = int.from_bytes(token, "little")
                kept[i + 1 : int(np.searchsorted(before, stops[k])) + 1] = False
        return ids[kept]


def _piece(raw: np.ndarray, starts: np.ndarray, ends: np.ndarray, k: int) -> bytes:
    return raw[starts[k] : ends[k]].tobytes()


def _sewn(text: np.ndarray, starts: np.ndarray) -> bytes:
    """A text with a zero byte in front of each piece but the first."""
    if len(starts) == 1:
        return text.tobytes()
    at = np.ones(len(text), np.intp)
    at[0], at[starts[1:]] = 0, 2
    np.cumsum(at, out=at)
    sewn = np.zeros(len(text) + len(starts) - 1, np.uint8)
    sewn[at] = text
    return sewn.tobytes()


def takes(starts: np.ndarray, ends: np.ndarray) -> bool:
    """Are there pieces, int64[k] each, and none too long?"""
    return len(starts) > 0 and int((ends - starts).max()) <= LONGEST


def all_fit(pieces: Sequence[bytes]) -> bool:
    """Does each of the pieces fit?"""
    together = _BETWEEN.join(pieces)
    if together.isascii() and together.count(0) == len(pieces) - 1 and max(map(len, pieces)) <= LONGEST:
        return True
    return all(map(fits, pieces))


def fits(piece: bytes) -> bool:
    """May the piece be one of a call?  It is not long, whole UTF-8, and free of what stands between pieces."""
    if len(piece) > LONGEST or b"\0" in piece:
        return False
    if piece.isascii():
        return True
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True
