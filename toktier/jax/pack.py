"""Rows of equal length for training, made on the device: documents concatenated and split, or put in whole.

Every function is pure and of static shape, and says what it could not place; nothing is dropped in silence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from toktier.errors import InputError
from toktier.jax.encode import Tokens

_MOST = 0x7FFFFFFF


class Packed(NamedTuple):
    """R rows of `length` elements made of B documents.

    An *element* is a token of a document or the BOS or EOS beside it.

    Attributes:
      ids: int32[R, length], the pad id where nothing stands.
      segment_ids: int32[R, length], 1, 2, ... for the documents of a row, 0 where nothing stands.
      positions: int32[R, length], place within the segment, 0 where nothing stands.
      source: int32[R, length], which token stands here: document * T + token; -1 at BOS, EOS and padding.
      rows: int32, rows in use, which are the first.
      taken: int32[B], how many elements of each document are placed now, those of `start` included.
      size: int32[B], elements of each document; 0 for one that is empty or not ok.
      overflow: bool, some document is not placed to its end.
    """

    ids: Array
    segment_ids: Array
    positions: Array
    source: Array
    rows: Array
    taken: Array
    size: Array
    overflow: Array


def pack(
    tokens: Tokens,
    length: int,
    rows: int,
    *,
    how: str = "split",
    bos: int | None = None,
    eos: int | None = None,
    pad: int = 0,
    start: Any = None,
    first: Any = None,
    last: Any = None,
) -> Packed:
    """Documents into rows of one length.

    A document without tokens takes no place, with BOS and EOS or without; so does one that is not ok (check
    `tokens.ok`, or fill such rows with `fallback` first).

    Args:
      tokens: of B documents.
      length, rows: static; the shape of the result.
      how: "split": all documents one behind the other, cut every `length` elements; a document that goes on in the next
        row is a segment of its own there, with positions from 0.  "first_fit": every document whole, in the first row
        with room for it; one with more elements than `length` is not placed.
      bos, eos: ids in front of and behind each document, or None.
      pad: the id where nothing stands.
      start: int32[B], how many elements of each document an earlier call has placed (its `taken`); None: none.  So what
        does not fit goes into the next call.
      first, last: bool[B], for documents in parts (`toktier.jax.cut`): whether a row is the first and the last part of
        its document.  A part that is not the first goes on with the row before it: one segment, no BOS between.  If one
        part is not ok, none of that document's parts here takes a place.  None: every row is a whole document.  Only
        with how="split".

    Returns:
      Packed; `overflow` says that rows did not suffice, `taken` and `size` which documents that concerns.

    >>> import toktier
    >>> from toktier.jax import batch, encode_bytes, pack
    >>> tok = toktier.load("o200k_base")
    >>> rows = batch(tok, ["hello world", "", "hi"], length=128)
    >>> packed = pack(encode_bytes(tok.tables, rows.data, rows.lengths, max_tokens=8), 4, 2, eos=199999)
    >>> packed.ids.tolist(), packed.segment_ids.tolist()
    ([[24912, 2375, 199999, 3686], [199999, 0, 0, 0]], [[1, 1, 1, 2], [1, 0, 0, 0]])
    >>> packed.positions.tolist(), int(packed.rows), bool(packed.overflow)
    ([[0, 1, 2, 0], [0, 0, 0, 0]], 2, False)
    """
    _check_shape(length, rows)
    ids, count = _rows_of(tokens)
    b, t = ids.shape
    if how == "first_fit" and (first is not None or last is not None):
        raise InputError("first and last are for how='split'; how='first_fit' takes whole documents")
    ok = jnp.asarray(tokens.ok)
    first, last = _flags(first, b, "first"), _flags(last, b, "last")
    whole = jnp.cumsum(first.at[:1].set(True), dtype=jnp.int32) - 1  # the document of each part
    ok = (jnp.zeros(b, jnp.int32).at[whole].add(~ok) == 0)[whole]
    filled = (jnp.zeros(b, jnp.int32).at[whole].max(count) > 0)[whole]
    count = jnp.where(ok, count, 0)
    before = (first & (bos is not None)).astype(jnp.int32)
    size = jnp.where(ok & filled, before + count + (last & (eos is not None)), 0)
    done = jnp.zeros(b, jnp.int32) if start is None else jnp.asarray(start).astype(jnp.int32)
    if done.shape != (b,):
        raise InputError(f"start must be int32[{b}], not of shape {done.shape}")
    done = jnp.clip(done, 0, size)
    left = size - done
    if how == "split":
        place, taken = _one_behind_the_other(left, length * rows)
    elif how == "first_fit":
        place, taken = _first_fit(left, length, rows)
    else:
        raise InputError(f"how={how!r} is not known; use 'split' or 'first_fit'")

    # which document covers each element of the result: the last one that begins at or before it
    total = length * rows
    index = jnp.arange(total, dtype=jnp.int32)
    begins = jnp.zeros(total, jnp.int32).at[jnp.where(taken > 0, place, total)].set(jnp.arange(1, b + 1), mode="drop")
    head = lax.cummax(jnp.where(begins > 0, index, -1))
    document = begins[jnp.maximum(head, 0)] - 1
    there = (head >= 0) & (index - head < taken[document])
    element = index - head + done[document]
    token = element - before[document]
    at = jnp.where(there & (token >= 0) & (token < count[document]), document * t + token, -1)
    value = jnp.where(at >= 0, ids.reshape(-1)[jnp.maximum(at, 0)], pad)
    if bos is not None:
        value = jnp.where(there & (token < 0), bos, value)
    if eos is not None:
        value = jnp.where(there & (token >= count[document]), eos, value)

    opens = there & (((index == head) & first[document]) | (index % length == 0))
    position = jnp.where(there, index - lax.cummax(jnp.where(opens, index, 0)), 0)
    there = there.reshape(rows, length)
    segment = jnp.where(there, jnp.cumsum(opens.reshape(rows, length), 1, dtype=jnp.int32), 0)
    placed = done + taken
    return Packed(
        value.reshape(rows, length),
        segment,
        position.reshape(rows, length),
        at.reshape(rows, length),
        there.any(1).sum(dtype=jnp.int32),
        placed,
        size,
        jnp.any(placed < size),
    )


def take(packed: Packed, values: Any, fill: Any = 0) -> Array:
    """Values of the tokens (a loss mask, say) in the places that the tokens have now.

    Args:
      values: any type [B, T]; fill: what BOS, EOS and padding get.

    Returns:
      [R, length].
    """
    flat = jnp.asarray(values).reshape(-1)
    found = flat[jnp.maximum(packed.source, 0)]
    return jnp.where(packed.source >= 0, found, jnp.asarray(fill, flat.dtype))


def pad(tokens: Tokens, length: int, value: int = 0) -> tuple[Array, Array, Array]:
    """Each document in a row of its own.

    Returns:
      ids int32[B, length] with `value` behind the tokens; mask bool[B, length], where a token stands; ok bool[B], the
      document was ok and fits.  A row that is not ok is empty: `truncate` first where tokens may be cut off.
    """
    _check_shape(length, 1)
    ids, count = _rows_of(tokens)
    ok = jnp.asarray(tokens.ok) & (count <= length)
    mask = (jnp.arange(length) < count[:, None]) & ok[:, None]
    return jnp.where(mask, _width(ids, length), value), mask, ok


def truncate(tokens: Tokens, length: int, side: str = "right") -> tuple[Tokens, Array]:
    """No more than `length` tokens of each document.

    A row that `encode_bytes` had no room for (Reason.OVERFLOW) has no tokens to cut; give it a larger max_tokens.

    Args:
      side: where tokens are cut off: "right" keeps the first, "left" the last.

    Returns:
      Tokens with T = length (`needed` stays), and int32[B], how many tokens were cut off.
    """
    _check_shape(length, 1)
    if side not in ("right", "left"):
        raise InputError(f"side={side!r} is not known; use 'right' or 'left'")
    ids, count = _rows_of(tokens)
    kept = jnp.minimum(count, length)
    cut = count - kept
    index = jnp.arange(length, dtype=jnp.int32) + (cut if side == "left" else jnp.zeros_like(cut))[:, None]
    here = jnp.arange(length) < kept[:, None]

    def shifted(x: Array) -> Array:
        if not x.shape[1]:
            return jnp.zeros((x.shape[0], length), jnp.int32)
        return jnp.where(here, jnp.take_along_axis(x, jnp.minimum(index, x.shape[1] - 1), 1), 0)

    ends = shifted(jnp.asarray(tokens.ends))
    return tokens._replace(ids=shifted(ids), count=kept, ends=ends), cut


def _one_behind_the_other(left: Array, room: int) -> tuple[Array, Array]:
    """Where each document begins, and how many of its elements fit."""
    # a sum over many documents may pass 2**31; beyond the room nothing needs to be told apart
    ends = lax.associative_scan(lambda a, b: jnp.minimum(a + jnp.minimum(b, _MOST - a), room), jnp.minimum(left, room))
    place = jnp.concatenate([jnp.zeros(min(1, left.shape[0]), jnp.int32), ends[:-1]])
    return place, jnp.minimum(left, room - place)


def _first_fit(left: Array, length: int, rows: int) -> tuple[Array, Array]:
    """Where each document stands and how much of it: all or nothing."""

    def put(used: Array, size: Array) -> tuple[Array, tuple[Array, Array]]:
        fits = used + size <= length
        row = jnp.argmax(fits)
        good = fits[row] & (size > 0)
        place = row.astype(jnp.int32) * length + used[row]
        return used.at[row].add(jnp.where(good, size, 0)), (place, jnp.where(good, size, 0))

    sizes = jnp.minimum(left, length + 1)
    return lax.scan(put, jnp.zeros(rows, jnp.int32), sizes)[1]


def _flags(values: Any, b: int, name: str) -> Array:
    flags = jnp.ones(b, bool) if values is None else jnp.asarray(values)
    if flags.shape != (b,) or flags.dtype != bool:
        raise InputError(f"{name} must be bool[{b}], not {flags.dtype}{list(flags.shape)}")
    return flags


def _width(ids: Array, length: int) -> Array:
    """The first `length` columns, zeros where there are fewer."""
    return jnp.pad(ids[:, :length], ((0, 0), (0, max(0, length - ids.shape[1]))))


def _rows_of(tokens: Tokens) -> tuple[Array, Array]:
    ids, count = jnp.asarray(tokens.ids), jnp.asarray(tokens.count)
    if ids.ndim != 2:
        raise InputError(f"tokens must have rows, not ids of shape {ids.shape}; encode uint8[B, L]")
    return ids, count


def _check_shape(length: Any, rows: Any) -> None:
    for name, value in (("length", length), ("rows", rows)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name}={value!r} must be a positive int")
    if length * rows >= _MOST:
        raise InputError(f"length={length} times rows={rows} is more than {_MOST} elements")
