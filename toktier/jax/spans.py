"""Which tokens come from which part of a text: from their ends, on the device.

A token reaches from the end of the token before it (0 for the first of a row) to its own end; characters that the
pre-tokenizer drops belong to the token behind them.  A boundary between two parts may fall inside a token: then a rule,
chosen by the caller, says to which part that token belongs.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from toktier.errors import InputError
from toktier.jax.encode import Tokens

RULES = ("touch", "whole", "start", "end")


def span_mask(tokens: Tokens, starts: Any, stops: Any, *, rule: str = "touch") -> Array:
    """Which tokens lie in the spans: a loss mask.

    Args:
      tokens: of B rows.
      starts, stops: int32[B, K] byte spans of each row; empty where stop <= start.
      rule: which tokens at the edge of a span are in it: "touch", those with any byte in it (no byte of the span goes
        without a token; as Hugging Face's assistant masks have it); "whole", those with all bytes in it; "start" and
        "end", those whose first or last byte is in it.  A token without bytes of its own (a prefix space) is in the
        span that holds its place.

    Returns:
      bool[B, T], False behind the tokens of a row.

    >>> import toktier
    >>> from toktier.jax import batch, encode_bytes, span_mask
    >>> tok = toktier.load("o200k_base")
    >>> rows = batch(tok, ["Q: why? A: because"], length=128)
    >>> tokens = encode_bytes(tok.tables, rows.data, rows.lengths, max_tokens=8)
    >>> tokens.ends[0].tolist()
    [1, 2, 6, 7, 9, 10, 18, 0]
    >>> span_mask(tokens, [[10]], [[18]])[0].tolist()
    [False, False, False, False, False, False, True, False]
    """
    starts, stops = _edges(tokens, starts, "starts"), _edges(tokens, stops, "stops")
    if starts.shape != stops.shape:
        raise InputError(f"starts has shape {starts.shape}, and stops {stops.shape}")
    first, behind = (x[:, :, None] for x in extents(tokens))
    starts, stops = starts[:, None, :], stops[:, None, :]
    if rule == "touch":
        inside = (first < stops) & (behind > starts)
    elif rule == "whole":
        inside = (first >= starts) & (behind <= stops)
    elif rule == "start":
        inside = (first >= starts) & (first < stops)
    elif rule == "end":
        inside = (behind > starts) & (behind <= stops)
    else:
        raise InputError(f"rule={rule!r} is not known; use one of {', '.join(RULES)}")
    inside = jnp.where(first < behind, inside, (first >= starts) & (first < stops)) & (starts < stops)
    return inside.any(2) & _valid(tokens)


def part_ids(tokens: Tokens, stops: Any, *, rule: str = "start") -> Array:
    """Which part of its text each token comes from, where the parts follow each other without a gap.

    Args:
      tokens: of B rows.
      stops: int32[B, K], ascending: where each part ends in bytes of the row.
      rule: "start" or "end": the part of a token that lies in two is that of its first or of its last byte.

    Returns:
      int32[B, T], 0 to K - 1; K for a token beyond the last part, -1 behind the tokens of a row.
    """
    stops = _edges(tokens, stops, "stops")[:, None, :]
    first, behind = (x[:, :, None] for x in extents(tokens))
    if rule not in ("start", "end"):
        raise InputError(f"rule={rule!r} is not known; use 'start' or 'end'")
    place = first if rule == "start" else jnp.maximum(behind - 1, first)
    return jnp.where(_valid(tokens), (stops <= place).sum(2, dtype=jnp.int32), -1)


def extents(tokens: Tokens) -> tuple[Array, Array]:
    """(first, behind) int32[B, T]: the bytes first to behind of the row are those of each token."""
    behind = jnp.asarray(tokens.ends)
    return jnp.pad(behind[:, :-1], ((0, 0), (1, 0))), behind


def _valid(tokens: Tokens) -> Array:
    return jnp.arange(tokens.ids.shape[1]) < jnp.asarray(tokens.count)[:, None]


def _edges(tokens: Tokens, values: Any, name: str) -> Array:
    values = jnp.asarray(values)
    if tokens.ids.ndim != 2:
        raise InputError("tokens must have rows; encode uint8[B, L]")
    if values.ndim != 2 or values.shape[0] != tokens.ids.shape[0]:
        raise InputError(f"{name} must be int32[{tokens.ids.shape[0]}, K], not of shape {values.shape}")
    return values.astype(jnp.int32)
