"""Bytes in, ids out: a pure function for use inside other JAX programs.

All rows run as one launch (launch.py).  A row that cannot be told exactly is blanked before it runs, says why, and
costs its neighbours nothing.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from toktier.compact import exclusive_sum, positions
from toktier.errors import EngineError, InputError, InputTypeError
from toktier.jax import launch, literals
from toktier.jax.checks import BOUNDARY
from toktier.jax.launch import Reason
from toktier.jax.tables import Tables


class Tokens(NamedTuple):
    """Tokens of B rows (of one, without the first axis, for one-dimensional bytes).

    Attributes:
      ids: int32[B, T]; the first `count` of a row are its tokens, zeros follow.
      count: int32[B]; 0 where not `ok`.
      ends: int32[B, T], byte offset in the row behind each token (exclusive), zeros behind the tokens.
      ok: bool[B], the ids are exactly the reference's; else the row has none, and `reason` says why.
      reason: int32[B], a `Reason`.
      needed: int32[B], tokens of the row whether they fit or not; 0 where they are not known.
    """

    ids: Array
    count: Array  # type: ignore[assignment]  # tuple.count gives way
    ends: Array
    ok: Array
    reason: Array
    needed: Array


class Spans(NamedTuple):
    """Added tokens that the host has found: S of them, by row and place; unused entries have row -1 and are the last.

    row, start, stop, token: int32[S]; bytes start to stop of the row are that one token.
    """

    row: Any
    start: Any
    stop: Any
    token: Any


def encode_bytes(
    tables: Tables,
    data: Any,
    lengths: Any = None,
    *,
    spans: Spans | None = None,
    max_tokens: int | None = None,
    platform: str | None = None,
) -> Tokens:
    """The ids of UTF-8 bytes, as `Tokenizer.encode` gives them (without `add_special_tokens`).

    A pure function of arrays: it works under `jit`, `vmap`, `shard_map` (with `check_vma=False`) and `jax.export`, and
    is compiled once for each shape of `data`, `spans` and `max_tokens`.

    Args:
      tables: `Tokenizer.tables`, or `toktier.jax.tables(tok, special_tokens=...)`.
      data: uint8[N], one text, or uint8[B, L], one text a row; any N, B and L.
      lengths: int32 scalar or int32[B], bytes of each text; what is behind them is not read.  None: all.
      spans: added tokens that the host has found (`toktier.jax.plan`); the device then looks for none itself and takes
        the bytes as normalized.  The rows count over all of `data`.
      max_tokens: static; how many tokens of a row are returned.  None: as many as there can be.
      platform: static; where it will run ("cpu", "cuda", ...), if not on JAX's default backend.  It only chooses the
        widths of loops.

    Returns:
      Tokens; T is max_tokens.

    Raises:
      InputTypeError, InputError: data or lengths of another type or shape, or more than 2**26 bytes in one launch.
      EngineError: the tokenizer's normalizer can only be run by the reference, and `spans` is None.

    >>> import numpy as np, toktier
    >>> from toktier.jax import encode_bytes
    >>> tok = toktier.load("o200k_base")
    >>> tokens = encode_bytes(tok.tables, np.frombuffer(b"hello world", np.uint8), max_tokens=4)
    >>> tokens.ids.tolist(), tokens.ends.tolist(), int(tokens.count), bool(tokens.ok)
    ([24912, 2375, 0, 0], [5, 11, 0, 0], 2, True)
    """
    if not isinstance(tables, Tables):
        raise InputTypeError(f"tables must be the tables of a tokenizer, not {type(tables).__name__}: pass tok.tables")
    data = _array(data, "data", "uint8[N] or uint8[B, L]", "toktier.jax.batch(tok, texts) makes that of texts")
    if data.dtype != jnp.uint8 or data.ndim not in (1, 2):
        raise InputTypeError(f"data must be uint8[N] or uint8[B, L], not {data.dtype}{list(data.shape)}")
    lengths = _array(data.shape[-1] if lengths is None else lengths, "lengths", "integers", "give one a row")
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise InputTypeError(f"lengths must be integers, not {lengths.dtype}")
    if lengths.ndim == 0 or data.ndim == 1:
        lengths = jnp.broadcast_to(lengths, data.shape[:-1])
    if lengths.shape != data.shape[:-1]:
        raise InputError(f"lengths has shape {lengths.shape}, and data {data.shape}; give one length a row")
    if _checks_varying(data):
        raise InputError("encode_bytes inside jax.shard_map needs shard_map(..., check_vma=False)")
    if tables.needs_plan and spans is None:
        raise EngineError(
            "only the reference can run this tokenizer's normalizer; prepare the texts on the host with "
            "toktier.jax.plan(tok, texts, length=...) and pass its spans"
        )
    most = data.shape[-1] + tables.prefix_space
    room = most if max_tokens is None else max_tokens
    if isinstance(room, bool) or not isinstance(room, int) or (room < 1 and most):
        raise InputError(f"max_tokens={max_tokens!r} must be a positive int")
    rows = data if data.ndim == 2 else data[None]
    many = jnp.clip(lengths, -1, data.shape[-1] + 1).astype(jnp.int32).reshape(-1)
    if data.size == 0:
        found = _nothing(rows, many, min(room, most))
    else:
        found = _batchable(min(room, most), platform or jax.default_backend())(tables, rows, many, spans)
    return found if data.ndim == 2 else jax.tree.map(lambda x: x[0], found)


def _array(value: Any, name: str, kind: str, way_out: str) -> Array:
    """The argument as an array; JAX's own errors do not say which one it is, and it looks for a dtype in a str."""
    problem = None
    words = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(x, str | bytes) for x in words):
        try:
            return jnp.asarray(value)
        except (TypeError, ValueError, OverflowError) as e:
            problem = e
    way_out = _WAYS_OUT.get(type(value), way_out)
    raise InputTypeError(f"{name} must be {kind}, not {type(value).__name__}; {way_out}") from problem


_WAYS_OUT: dict[type, str] = {
    str: "np.frombuffer(text.encode(), np.uint8) makes that of a text",
    bytes: "np.frombuffer(data, np.uint8) makes that of bytes",
}


def _checks_varying(data: Array) -> bool:
    """Whether this is inside a shard_map that checks which values vary: the program's loops start from constants."""
    kind = jax.typeof(data)
    kind = getattr(kind, "manual_axis_type", kind)  # JAX 0.10 has `varying` there, earlier ones `vma` on the type
    return bool(getattr(kind, "varying", None) or getattr(kind, "vma", None))


def _nothing(rows: Array, lengths: Array, room: int) -> Tokens:
    """The tokens of no bytes at all."""
    zero = jnp.zeros(rows.shape[0], jnp.int32)
    none = jnp.zeros((rows.shape[0], room), jnp.int32)
    ok = (lengths >= 0) & (lengths <= rows.shape[1])
    return Tokens(none, zero, none, ok, jnp.where(ok, zero, Reason.LENGTH), zero)


@functools.cache
def _batchable(room: int, platform: str) -> Any:
    """The program as a function whose `vmap` adds rows to the launch, instead of running every step for each text."""

    @custom_vmap
    def run(tables: Tables, data: Array, lengths: Array, spans: Spans | None) -> Tokens:
        return _encode(tables, data, lengths, spans, room, platform)

    @run.def_vmap
    def more_rows(size: int, batched: Any, tables: Tables, data: Array, lengths: Array, spans: Spans | None) -> Any:
        if any(jax.tree.leaves(batched[0])):
            raise InputError("vmap over tables: a launch is of one tokenizer; call encode_bytes for each")

        def whole(x, is_batched):
            return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

        data, lengths, spans = jax.tree.map(whole, (data, lengths, spans), tuple(batched[1:]))
        rows = data.shape[1]
        if spans is not None:
            shift = rows * jnp.arange(size, dtype=jnp.int32)[:, None]
            # each vmapped call may end in unused entries, which belong behind all others
            row = jnp.where(spans.row >= 0, spans.row + shift, -1).reshape(-1)
            order = jnp.argsort(row < 0, stable=True)
            flat = [row, *(x.reshape(-1) for x in spans[1:])]
            spans = Spans(*(x[order] for x in flat))
        found = run(tables, data.reshape(-1, data.shape[2]), lengths.reshape(-1), spans)
        return jax.tree.map(lambda x: x.reshape(size, rows, *x.shape[1:]), found), jax.tree.map(lambda _: True, found)

    return run


def _encode(tables: Tables, data: Array, lengths: Array, spans: Spans | None, room: int, platform: str) -> Tokens:
    """In parts that are jitted each by itself: without an outer `jit`, the large ones serve many shapes of rows."""
    lead = int(tables.prefix_space)
    size = data.shape[0] * _width(data.shape[1], lead)
    if size > launch.MOST:
        raise InputError(
            f"{data.shape[0]} rows of {data.shape[1]} bytes need {size} bytes in one launch, and a launch takes "
            f"{launch.MOST}; encode fewer rows at a time, by jax.lax.map for instance"
        )
    found, wrong = _laid_out(data, lengths, spans, lead, launch.capacity(size, platform))
    found, bits = launch.prepare(tables, found, spans is not None)
    reason, good = _judged(bits, wrong, data.shape[1], lead)
    tokens = launch.tokenize(tables.program, found, good, platform)
    return _by_row(tables.program.bpe.length, tokens, found.stop, reason, room, data.shape[1], lead)


def _width(length: int, lead: int) -> int:
    """Bytes of a row in the launch: room for a prefix space in front, its text, the boundary behind it."""
    return lead + length + 1


@functools.partial(jax.jit, static_argnames=("lead", "capacity"))
def _laid_out(
    data: Array, lengths: Array, spans: Spans | None, lead: int, capacity: int
) -> tuple[literals.Found, Array]:
    """The rows one behind the other, and the reasons (bits, uint16[B]) that have to do with their layout."""
    b, length = data.shape
    there = jnp.arange(length) < lengths[:, None]
    rows = jnp.pad(jnp.where(there, data, BOUNDARY), ((0, 0), (lead, 1)), constant_values=BOUNDARY).reshape(-1)
    flat = jnp.pad(rows, (0, capacity - rows.shape[0]), constant_values=BOUNDARY)
    zeros = jnp.zeros(capacity, jnp.int32)
    found = literals.Found(flat, zeros, zeros, jnp.zeros(capacity, jnp.uint8))
    wrong = _bit((lengths < 0) | (lengths > length), Reason.LENGTH)
    foreign = there & (data == BOUNDARY)  # it would pass as a boundary
    if spans is not None:
        found, misplaced, covered = _placed(found, spans, lengths, _width(length, lead), lead)
        wrong |= _bit(misplaced, Reason.SPAN)
        foreign &= ~covered[: rows.shape[0]].reshape(b, -1)[:, lead:-1]
    return found, wrong | _bit(foreign.any(1), Reason.UTF8)


@functools.partial(jax.jit, static_argnames=("length", "lead"))
def _judged(bits: Array, wrong: Array, length: int, lead: int) -> tuple[Array, Array]:
    """The reason of each row, int32[B], and the bytes of the rows that have none, bool[N]."""
    b, width = wrong.shape[0], _width(length, lead)
    rows = bits[: b * width].reshape(b, width)
    for kind in Reason:
        wrong |= _bit((rows & (1 << kind)).any(1), kind)
    reason = jnp.where(wrong == 0, 0, jax.lax.population_count(~wrong & (wrong - 1)).astype(jnp.int32))
    good = jnp.broadcast_to((reason == 0)[:, None], (b, width)).reshape(-1)
    return reason, jnp.pad(good, (0, bits.shape[0] - b * width))


@functools.partial(jax.jit, static_argnames=("room", "length", "lead"))
def _by_row(sizes: Array, tokens: Array, stop: Array, reason: Array, room: int, length: int, lead: int) -> Tokens:
    """From tokens at places in the launch to the tokens of each row; `sizes` are the bytes of every id."""
    b, width = reason.shape[0], _width(length, lead)
    needed = (tokens[: b * width].reshape(b, width) > 0).sum(1, dtype=jnp.int32)
    place, _ = positions(tokens > 0)
    reason = jnp.where((reason == 0) & (needed > room), Reason.OVERFLOW, reason)
    count = jnp.where(reason == 0, needed, 0)
    k = jnp.arange(room, dtype=jnp.int32)
    here = k < count[:, None]
    at = place[jnp.where(here, exclusive_sum(needed)[:, None] + k, 0)]
    ids = jnp.where(here, tokens[at] - 1, 0)
    behind = jnp.where(stop[at] > 0, stop[at], at + sizes[ids])
    first = width * jnp.arange(b, dtype=jnp.int32)[:, None] + lead
    return Tokens(ids, count, jnp.where(here, behind - first, 0), reason == 0, reason, needed)


def _bit(flags: Array, reason: Reason) -> Array:
    return jnp.where(flags, jnp.uint16(1 << reason), jnp.uint16(0))


def _placed(
    found: literals.Found, spans: Spans, lengths: Array, width: int, lead: int
) -> tuple[literals.Found, Array, Array]:
    """The spans entered as literals, the rows with spans that cannot be, bool[B], and the bytes they cover, bool[N]."""
    n, b = found.data.shape[0], lengths.shape[0]
    row, start, stop, token = (jnp.asarray(x).astype(jnp.int32) for x in spans)
    used = row >= 0
    inside = (row < b) & (start >= 0) & (start < stop) & (token >= 0)
    inside &= stop <= lengths[jnp.clip(row, 0, b - 1)]
    follows = (row[1:] > row[:-1]) | ((row[1:] == row[:-1]) & (start[1:] >= stop[:-1]))
    follows &= used[:-1]
    fits = inside & jnp.concatenate([jnp.ones(min(1, row.shape[0]), bool), follows])
    misplaced = jnp.zeros(b, bool).at[jnp.where(used & ~fits, row, b)].set(True, mode="drop")
    misplaced |= jnp.any(row >= b)  # it belongs to no row of these, so nothing of this call can be trusted
    first, behind = row * width + lead + start, row * width + lead + stop
    good = used & fits
    at, to = jnp.where(good, first, n), jnp.where(good, behind, n)
    edges = jnp.zeros(n + 1, jnp.int32).at[at].add(1, mode="drop").at[to].add(-1, mode="drop")
    covered = jnp.cumsum(edges[:-1]) > 0
    return (
        found._replace(
            data=jnp.where(covered, jnp.uint8(BOUNDARY), found.data),
            token=found.token.at[at].set(token + 1, mode="drop"),
            stop=found.stop.at[at].set(behind, mode="drop"),
        ),
        misplaced,
        covered,
    )


jax.export.register_namedtuple_serialization(Tokens, serialized_name="toktier.Tokens")
jax.export.register_namedtuple_serialization(Spans, serialized_name="toktier.Spans")
