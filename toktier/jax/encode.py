"""Bytes in, ids out: a pure function for use inside other JAX programs.

All rows run as one launch.  They lie one behind the other with a boundary (0xFF) behind each, which is start of text
for what follows and end of text for what precedes, so no row sees another; the program is the one of `engine="device"`.
A row that cannot be told exactly is blanked before it runs, says why, and costs its neighbours nothing.
"""

from __future__ import annotations

import enum
import functools
import threading
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from toktier import program
from toktier.compact import exclusive_sum, positions
from toktier.device import tiles_for
from toktier.errors import EngineError, InputError, InputTypeError
from toktier.jax import literals
from toktier.jax.checks import BOUNDARY, not_normalized, not_utf8
from toktier.jax.tables import Tables

_MOST = 1 << 26  # bytes of a launch: the program packs a place and a length into 31 bits


class Reason(enum.IntEnum):
    """Why a row has no tokens; the first of these that applies."""

    OK = 0
    LENGTH = 1  # its length is negative, or more than the bytes of a row
    SPAN = 2  # its spans overlap, are not in order or do not lie within it
    UTF8 = 3  # its bytes are not UTF-8
    FORBIDDEN = 4  # it holds a special token, and those are forbidden
    LITERAL = 5  # it holds an added token that the host must match: one that looks at the text around it
    NORMALIZER = 6  # NFC may change it
    BYTE = 7  # it holds a byte that the vocabulary lacks
    OVERFLOW = 8  # it has more than max_tokens tokens; `needed` says how many


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
    count: Array
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
        raise InputTypeError(f"tables must be Tokenizer.tables, not {type(tables).__name__}")
    data = jnp.asarray(data)
    if data.dtype != jnp.uint8 or data.ndim not in (1, 2):
        raise InputTypeError(f"data must be uint8[N] or uint8[B, L], not {data.dtype}{list(data.shape)}")
    lengths = jnp.asarray(data.shape[-1] if lengths is None else lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise InputTypeError(f"lengths must be integers, not {lengths.dtype}")
    if lengths.ndim == 0 or data.ndim == 1:
        lengths = jnp.broadcast_to(lengths, data.shape[:-1])
    if lengths.shape != data.shape[:-1]:
        raise InputError(f"lengths has shape {lengths.shape}, and data {data.shape}; give one length a row")
    if getattr(jax.typeof(data), "vma", None):
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
        width = _width(tables, rows)
        if width * rows.shape[0] > _MOST:
            raise InputError(
                f"data of shape {data.shape} needs {width * rows.shape[0]} bytes in one launch, and a launch takes "
                f"{_MOST}; encode fewer rows at a time, by jax.lax.map for instance"
            )
        run = _batchable(min(room, most), platform or jax.default_backend())
        found = run(tables, rows, many, spans)
    return found if data.ndim == 2 else jax.tree.map(lambda x: x[0], found)


def trace_count() -> int:
    """How many programs were traced in this process: one for each shape and choice of static arguments.

    Under `vmap` it is one more, for the shape of a single call.
    """
    return _traces.count


class _Traces:
    """Counts how often the program is traced."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """One more."""
        with self._lock:
            self.count += 1


_traces = _Traces()


def _width(tables: Tables, rows: Array) -> int:
    """Bytes of a row in the launch: its text, the boundary behind it, and room for a prefix space in front."""
    return rows.shape[1] + 1 + tables.prefix_space


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
        arguments = (tables, data, lengths, spans)
        out = jax.tree.map(lambda _: True, Tokens(*range(6)))
        if any(jax.tree.leaves(batched[0])):  # several tokenizers: one after the other

            def one(k):
                pick = jax.tree.map(lambda x, b: x[k] if b else x, arguments, tuple(batched))
                return run(*pick)

            return jax.lax.map(one, jnp.arange(size)), out

        def whole(x, is_batched):
            return x if is_batched else jnp.broadcast_to(x, (size, *x.shape))

        data, lengths, spans = jax.tree.map(whole, arguments[1:], tuple(batched[1:]))
        rows = data.shape[1]
        if spans is not None:
            shift = rows * jnp.arange(size, dtype=jnp.int32)[:, None]
            # each vmapped call may end in unused entries, which belong behind all others
            row = jnp.where(spans.row >= 0, spans.row + shift, -1).reshape(-1)
            order = jnp.argsort(row < 0, stable=True)
            flat = [row, *(x.reshape(-1) for x in spans[1:])]
            spans = Spans(*(x[order] for x in flat))
        found = run(tables, data.reshape(-1, data.shape[2]), lengths.reshape(-1), spans)
        return jax.tree.map(lambda x: x.reshape(size, rows, *x.shape[1:]), found), out

    return jax.jit(run)


def _encode(tables: Tables, data: Array, lengths: Array, spans: Spans | None, room: int, platform: str) -> Tokens:
    _traces.add()
    b, length = data.shape
    width, lead = _width(tables, data), int(tables.prefix_space)
    capacity = _capacity(b * width, platform)
    there = jnp.arange(length) < lengths[:, None]
    rows = jnp.pad(jnp.where(there, data, BOUNDARY), ((0, 0), (lead, 1)), constant_values=BOUNDARY)
    flat = jnp.pad(rows.reshape(-1), (0, capacity - b * width), constant_values=BOUNDARY)

    def any_in(flags: Array) -> Array:
        return flags[: b * width].reshape(b, width).any(1)

    never = jnp.zeros(b, bool)
    zeros = jnp.zeros(capacity, jnp.int32)
    wrong: list[tuple[Reason, Array]] = [(Reason.LENGTH, (lengths < 0) | (lengths > length))]
    found = literals.Found(flat, zeros, zeros, never, never)
    if spans is not None:
        found, misplaced = _placed(found, spans, lengths, width, lead)
        wrong += [(Reason.SPAN, misplaced), (Reason.UTF8, any_in(not_utf8(found.data)))]
    else:
        wrong += [(Reason.UTF8, any_in(not_utf8(flat)))]
        found = literals.cut(tables.literals, literals.RAW, found, width)
        changed = any_in(not_normalized(tables.kinds, found.data))
        found = literals.cut(tables.literals, literals.NORMALIZED, found, width)
        wrong += [(Reason.FORBIDDEN, found.forbidden)]
        wrong += [(Reason.LITERAL, found.unclear), (Reason.NORMALIZER, changed)]
    data = found.data
    if tables.prefix_space:
        data, crowded = _with_spaces(found)
        wrong += [(Reason.LITERAL, any_in(crowded))]
    lacking = tables.missing[data.astype(jnp.int32)] & (data != BOUNDARY)
    wrong += [(Reason.BYTE, any_in(lacking))]
    reason = jnp.zeros(b, jnp.int32)
    for code, flags in wrong:
        reason = jnp.where((reason == 0) & flags, code, reason)

    good = jnp.pad(jnp.repeat(reason == 0, width, total_repeat_length=b * width), (0, capacity - b * width))
    tokens = program.tokens_at(tables.program, jnp.where(good, data, BOUNDARY), tiles_for(capacity, _engine(platform)))
    tokens = jnp.where(good & (found.token > 0), found.token, tokens)
    return _by_row(tables, tokens, found.stop, reason, room, width, lead)


def _by_row(tables: Tables, tokens: Array, stop: Array, reason: Array, room: int, width: int, lead: int) -> Tokens:
    """From tokens at places in the launch to the tokens of each row."""
    b = reason.shape[0]
    needed = (tokens[: b * width].reshape(b, width) > 0).sum(1, dtype=jnp.int32)
    place, _ = positions(tokens > 0)
    reason = jnp.where((reason == 0) & (needed > room), Reason.OVERFLOW, reason)
    count = jnp.where(reason == 0, needed, 0)
    k = jnp.arange(room, dtype=jnp.int32)
    here = k < count[:, None]
    at = place[jnp.where(here, exclusive_sum(needed)[:, None] + k, 0)]
    ids = jnp.where(here, tokens[at] - 1, 0)
    behind = jnp.where(stop[at] > 0, stop[at], at + tables.program.bpe.length[ids])
    first = width * jnp.arange(b, dtype=jnp.int32)[:, None] + lead
    return Tokens(ids, count, jnp.where(here, behind - first, 0), reason == 0, reason, needed)


def _engine(platform: str) -> str:
    return "cpu" if platform == "cpu" else "gpu"


def _capacity(size: int, platform: str) -> int:
    """Bytes of the launch: what the tiles of the program divide, and the scan's lanes on a CPU."""
    if platform == "cpu":
        return 1 << 13 if size <= 1 << 13 else -(-size >> 14) << 14
    return -(-size >> 16) << 16


def _placed(found: literals.Found, spans: Spans, lengths: Array, width: int, lead: int) -> tuple[literals.Found, Array]:
    """The spans entered as literals, and the rows with spans that cannot be: bool[B]."""
    n, b = found.data.shape[0], lengths.shape[0]
    row, start, stop, token = (jnp.asarray(x).astype(jnp.int32) for x in spans)
    used = row >= 0
    inside = (row < b) & (start >= 0) & (start < stop) & (token >= 0)
    inside &= stop <= lengths[jnp.clip(row, 0, b - 1)]
    follows = (row[1:] > row[:-1]) | ((row[1:] == row[:-1]) & (start[1:] >= stop[:-1])) | ~used[1:]
    follows &= used[:-1] | ~used[1:]
    fits = inside & jnp.concatenate([jnp.ones(min(1, row.shape[0]), bool), follows])
    # an entry beyond the rows belongs to none: nothing of this call can be trusted
    misplaced = jnp.zeros(b, bool).at[jnp.where(used & ~fits, row, b)].set(True, mode="drop")
    misplaced |= jnp.any(used & ((row >= b) | ~fits) & (row >= b))
    first, behind = row * width + lead + start, row * width + lead + stop
    good = used & fits
    at = jnp.where(good, first, n)
    edges = jnp.zeros(n + 1, jnp.int32).at[at].add(1, mode="drop").at[jnp.where(good, behind, n)].add(-1, mode="drop")
    covered = jnp.cumsum(edges[:-1]) > 0
    return (
        found._replace(
            data=jnp.where(covered, jnp.uint8(BOUNDARY), found.data),
            token=found.token.at[at].set(token + 1, mode="drop"),
            stop=found.stop.at[at].set(behind, mode="drop"),
        ),
        misplaced,
    )


def _with_spaces(found: literals.Found) -> tuple[Array, Array]:
    """The bytes with a space in front of each segment that does not begin with one, and where there is no room for it.

    The space takes the place in front of the segment: the lead of a row, or the last byte of a literal, whose own token
    stands at its first byte.  A literal of one byte has no room: bool[N], flagged.
    """
    data = found.data
    behind = jnp.concatenate([data[1:], jnp.full(1, BOUNDARY, jnp.uint8)])
    wanted = (data == BOUNDARY) & (behind != BOUNDARY) & (behind != 0x20)
    crowded = wanted & (found.token > 0)
    return jnp.where(wanted & ~crowded, jnp.uint8(0x20), data), crowded


jax.export.register_namedtuple_serialization(Tokens, serialized_name="toktier.Tokens")
jax.export.register_namedtuple_serialization(Spans, serialized_name="toktier.Spans")
