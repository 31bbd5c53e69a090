"""The host's side: texts into rows of bytes, texts prepared in full, and rows that the device could not tell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toktier.added import SEPARATOR
from toktier.errors import InputError, SpecialTokenError
from toktier.jax.encode import Spans, Tokens
from toktier.jax.launch import Reason

if TYPE_CHECKING:
    from toktier.added import Mode
    from toktier.tokenizer import Tokenizer

_LEAST_SPANS = 64


class Rows(NamedTuple):
    """Texts as `encode_bytes` takes them (NumPy arrays).

    Attributes:
      data: uint8[B, L], one text a row, zeros behind it.
      lengths: int32[B], bytes of each text; more than L where the text is too long and `too_long="flag"`.
      spans: the added tokens, from `plan`; None from `batch`.
    """

    data: np.ndarray
    lengths: np.ndarray
    spans: Spans | None = None


def batch(
    tok: Tokenizer, texts: Iterable[str], *, length: int | None = None, rows: int | None = None, too_long: str = "error"
) -> Rows:
    """Texts as rows of UTF-8.  The device finds the added tokens.

    Args:
      tok: the tokenizer.
      texts: any number of str.
      length: bytes of a row; None for the next power of two that holds the longest text (each is one compilation).
      rows: make it so many rows, with empty texts behind; None for as many as there are texts.
      too_long: what becomes of a text of more bytes: "error", or "flag": its row comes back with Reason.LENGTH.

    Raises:
      InputTypeError, InputError: as `Tokenizer.encode_batch`; a text is too long; more texts than rows.

    >>> import toktier
    >>> from toktier.jax import batch
    >>> batch(toktier.load("o200k_base"), ["hello", "hi"], length=8).lengths.tolist()
    [5, 2]
    """
    from toktier.tokenizer import _checked_list

    encoded = []
    for k, text in enumerate(_checked_list(texts)):
        try:
            encoded.append(tok.core.pipeline.utf8(text))
        except InputError as e:
            raise InputError(f"texts[{k}]: {e}") from None
    return Rows(*_stacked(encoded, length, rows, too_long))


def plan(
    tok: Tokenizer,
    texts: Iterable[str],
    *,
    length: int | None = None,
    rows: int | None = None,
    max_spans: int | None = None,
    special_tokens: Mode | None = None,
    too_long: str = "error",
) -> Rows:
    """Texts prepared on the host as `Tokenizer.encode` does it: normalized, their added tokens found.

    For tokenizers whose normalizer or added tokens the device cannot do (Reason.NORMALIZER, Reason.LITERAL).  `ends`
    then refer to the normalized text, as those of `Tokenizer.encode_spans` do.  In the rows the bytes of an added token
    are 0xFF.

    Args:
      tok, texts, length, rows, too_long: as for `batch`.
      max_spans: room for so many added tokens (their number is part of the compiled shape); None for the next power of
        two, at least 64.
      special_tokens: as for `Tokenizer.encode`.

    Raises:
      as `batch`; SpecialTokenError; InputError also where there are more added tokens than `max_spans`.
    """
    from toktier.tokenizer import _checked_list

    listed = _checked_list(texts)
    prepared = tok.core.pipeline.prepare(listed, tok._mode(special_tokens))
    buffer, marks = prepared.buffer, prepared.marks
    size = np.ones(len(buffer), np.int64)
    holes = np.flatnonzero(buffer == 0xFF)
    size[holes] = np.where(marks.ids == SEPARATOR, 1, marks.lengths)
    size[prepared.spaces] = 0  # the device puts them in
    spread = np.repeat(buffer, size)
    start = (np.cumsum(size) - size)[holes]
    separator = marks.ids == SEPARATOR
    edges = np.concatenate([[0], start[separator] + 1, [len(spread) + 1]])
    encoded = [spread[a : b - 1].tobytes() for a, b in itertools.pairwise(edges)][: len(listed)]
    row = np.cumsum(separator)[~separator]
    start, lengths = start[~separator] - edges[row], marks.lengths[~separator]
    found = np.stack([row, start, start + lengths, marks.ids[~separator]]).astype(np.int32)
    stacked = _stacked(encoded, length, rows, too_long)
    found = found[:, found[2] <= stacked[0].shape[1]]  # a row that is too long is flagged, and its spans go with it
    count = found.shape[1]
    room = max(_LEAST_SPANS, _power(count)) if max_spans is None else max_spans
    if count > room:
        raise InputError(f"max_spans={max_spans} is less than the {count} added tokens of these texts")
    padded = np.full((4, room), -1, np.int32)
    padded[:, :count] = found
    return Rows(*stacked, Spans(*padded))


def fallback(
    tok: Tokenizer, texts: Sequence[str], tokens: Tokens, *, special_tokens: Mode | None = None, grow: bool = False
) -> Tokens:
    """The tokens with every row that is not ok filled by `Tokenizer.encode_spans` on the host.

    Args:
      tok: the tokenizer.
      texts: the texts of the rows, in order; there may be more rows than texts, with empty texts behind.
      tokens: of `encode_bytes`, with rows.
      special_tokens: the mode of the tables.
      grow: make the arrays wider where a text has more tokens than T; else that is an error.

    Returns:
      Tokens of NumPy arrays; every row is ok.

    Raises:
      SpecialTokenError: special tokens are forbidden and a text holds one.
      InputError: a text has more than T tokens; fewer rows than texts.
    """
    ids, count, ends, ok, reason, needed = (np.array(x) for x in tokens)
    if len(ids) < len(texts):
        raise InputError(f"texts has {len(texts)} texts, and tokens {len(ids)} rows")
    made = {}
    for k in np.flatnonzero(~ok).tolist():
        if k >= len(texts):
            raise InputError(f"row {k} is not ok ({Reason(int(reason[k])).name}) and has no text")
        try:
            made[k] = tok.encode_spans(texts[k], special_tokens=special_tokens)
        except (SpecialTokenError, InputError) as e:
            error = type(e)(f"texts[{k}]: {e}")
            error.__dict__.update(e.__dict__)
            raise error from None
    widest = max((len(m.ids) for m in made.values()), default=0)
    if widest > ids.shape[1]:
        if not grow:
            k = next(k for k, m in made.items() if len(m.ids) > ids.shape[1])
            raise InputError(
                f"texts[{k}] has {len(made[k].ids)} tokens, and a row has room for {ids.shape[1]}; pass grow=True, or "
                "a larger max_tokens to encode_bytes"
            )
        ids, ends = (np.pad(x, ((0, 0), (0, widest - x.shape[1]))) for x in (ids, ends))
    for k, m in made.items():
        ids[k, : len(m.ids)], ends[k, : len(m.ids)] = m.ids, m.ends
        count[k] = needed[k] = len(m.ids)
    return Tokens(ids, count, ends, np.ones_like(ok), np.zeros_like(reason), needed)  # type: ignore[arg-type]


def _stacked(
    encoded: list[bytes], length: int | None, rows: int | None, too_long: str
) -> tuple[np.ndarray, np.ndarray]:
    if too_long not in ("error", "flag"):
        raise InputError(f"too_long={too_long!r} is not known; use 'error' or 'flag'")
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    wide = max(16, _power(int(lengths.max(initial=0)))) if length is None else length
    many = len(encoded) if rows is None else rows
    if many < len(encoded):
        raise InputError(f"rows={rows} is less than the {len(encoded)} texts")
    if too_long == "error" and (lengths > wide).any():
        k = int(np.argmax(lengths > wide))
        raise InputError(
            f"texts[{k}] has {lengths[k]} bytes, and length={length}; pass a larger length, cut it with "
            "toktier.jax.cut, or pass too_long='flag' to have its row marked Reason.LENGTH"
        )
    data = np.zeros((many, wide), np.uint8)
    for k, raw in enumerate(encoded):
        if len(raw) <= wide:
            data[k, : len(raw)] = np.frombuffer(raw, np.uint8)
    out = np.zeros(many, np.int32)
    out[: len(encoded)] = np.minimum(lengths, np.iinfo(np.int32).max)
    return data, out


def _power(size: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(size - 1, 0).bit_length()
