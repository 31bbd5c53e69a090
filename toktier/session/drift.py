"""Where ids that a model gave are not those that encoding their text gives.

A model that samples token by token may spell a text in other tokens than the tokenizer would.  Who decodes its output
and encodes it again (for the next turn, or to train on it) then holds other ids: a prefix cache misses, and in
reinforcement learning the log-probabilities belong to tokens that were never sampled.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import EngineError

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


_NOTING = "toktier.drift"
_wrong = threading.local()  # `spans`: the places of bytes that are not UTF-8, in the order they are met


def _note(error: UnicodeError) -> tuple[str, int]:
    """As "replace", and notes the place."""
    assert isinstance(error, UnicodeDecodeError)
    _wrong.spans.append((error.start, error.end))
    return "\ufffd", error.end


codecs.register_error(_NOTING, _note)


class Difference(NamedTuple):
    """One stretch of bytes that two sequences of ids spell in different tokens.

    Attributes:
      start: index in `given` of the first token of the stretch.
      given: int32[k], its tokens there.
      fresh_start, fresh: the same of the other sequence.
      data: the bytes that `given` spells here.  `fresh` spells the same, but U+FFFD for what is not UTF-8.
    """

    start: int
    given: np.ndarray
    fresh_start: int
    fresh: np.ndarray
    data: bytes


def differences(tokenizer: Tokenizer, given: Iterable[int], fresh: Iterable[int]) -> list[Difference]:
    """Where two sequences of ids differ, in shortest stretches that begin and end where both have a token's end.

    Args:
      tokenizer: of both.
      given: ids, such as those a model gave.
      fresh: ids to compare with, such as those that encoding the text of `given` gives.

    Returns:
      the stretches, in order; none where the two are equal.  Where they do not spell the same text, one stretch: all
      between the tokens that both begin with and those that both end with.

    Raises:
      InputError, InputTypeError: as `Tokenizer.decode`.
      EngineError: the bytes of a token depend on its neighbours (a decoder that is not byte-level).

    >>> import toktier
    >>> tok = toktier.load("o200k_base")
    >>> spelled = [*tok.encode("the"), *tok.encode(" pipe"), *tok.encode("line")]
    >>> for d in differences(tok, spelled, tok.encode("the pipeline")):
    ...     print(d.start, d.given.tolist(), d.fresh.tolist(), d.data)
    1 [22906, 1137] [29412] b' pipeline'
    """
    decoder = tokenizer.core.decoder
    if not decoder.byte_level:
        raise EngineError(f"the tokens of {tokenizer.spec.name} have no bytes of their own to compare by")
    a, b = (decoder.check(ids).astype(np.int32) for ids in (given, fresh))
    (data, a_own), (other, b_own) = _spelled(tokenizer, a), _spelled(tokenizer, b)
    (text, a_ends), (fresh_text, b_ends) = _repaired(data, a_own), _repaired(other, b_own)
    if text != fresh_text:
        return _one(a, b, data, a_own)
    found = []
    # A stretch ends at the last token that ends there: tokens without bytes belong to what is in front of them.
    common = np.intersect1d(a_ends, b_ends)
    common = common[common % 2 == 0]
    a_stops, b_stops = (np.searchsorted(ends, common, side="right").tolist() for ends in (a_ends, b_ends))
    i = j = 0
    for i_stop, j_stop in zip(a_stops, b_stops, strict=True):
        if i_stop - i != j_stop - j or (a[i:i_stop] != b[j:j_stop]).any():
            begin, stop = (int(a_own[k - 1]) if k else 0 for k in (i, i_stop))
            found.append(Difference(i, a[i:i_stop], j, b[j:j_stop], data[begin:stop]))
        i, j = i_stop, j_stop
    if i < len(a) or j < len(b):  # only tokens without bytes are left
        found.append(Difference(i, a[i:], j, b[j:], b""))
    return found


def _spelled(tokenizer: Tokenizer, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
    """(the bytes of the ids, int64[k]: where each token ends in them)."""
    distinct, inverse = np.unique(ids, return_inverse=True)
    tokens = [tokenizer.token_bytes(i) for i in distinct.tolist()]
    pieces = [tokens[k] for k in inverse.tolist()]
    return b"".join(pieces), np.cumsum([len(p) for p in pieces], dtype=np.int64)


def _repaired(data: bytes, ends: np.ndarray) -> tuple[bytes, np.ndarray]:
    """The bytes with U+FFFD for what is not UTF-8, and int64[k], where the tokens end there.

    In half bytes: an end inside of what became one U+FFFD is odd, just behind where that begins.
    """
    _wrong.spans = []
    text = data.decode("utf-8", _NOTING)
    if not _wrong.spans:
        return data, 2 * ends
    begin, stop = np.array(_wrong.spans, np.int64).T
    grown = np.append(0, np.cumsum(len("\ufffd".encode()) - (stop - begin)))
    k = np.searchsorted(stop, ends, side="right")  # how many stand in front of each end
    around = np.minimum(k, len(begin) - 1)
    inside = (k < len(begin)) & (begin[around] < ends)
    return text.encode(), np.where(inside, 2 * (begin[around] + grown[k]) + 1, 2 * (ends + grown[k]))


def _one(a: np.ndarray, b: np.ndarray, data: bytes, ends: np.ndarray) -> list[Difference]:
    """All between the common front and the common back."""
    short = min(len(a), len(b))
    front = int(np.argmin([*(a[:short] == b[:short]), False]))
    same = a[len(a) - short + front :][::-1] == b[len(b) - short + front :][::-1]
    back = int(np.argmin([*same, False]))
    i, j = len(a) - back, len(b) - back
    begin, stop = (int(ends[k - 1]) if k else 0 for k in (front, i))
    return [Difference(front, a[front:i], front, b[front:j], data[begin:stop])]
