"""Faults planted in copies of the tables, each of which changes the result on the text at hand.

Five kinds: an entry of the output table flipped, two symbols swapped, a merge changed, an id replaced, an end shifted.
A place is chosen among those that the text really exercises, by an argument that does not use the engines: a campaign
that does not find a planted fault has failed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from toktier.bpe.tables import WORD_BYTES, BpeTables
from toktier.core import Tables
from toktier.encoded import Encoded
from toktier.errors import InputError
from toktier.pretok.tables import INSIDE, START, PretokTables

KINDS = ("output", "symbols", "merge", "id", "end")
_BOUNDARY = 0xFF
_WALKED = 200_000  # characters of the text through which the automata are walked, one by one
_TRIED = 200  # pairs of symbols looked at for each that is swapped


class Sample(NamedTuple):
    """A buffer of the text, right ids and ends of its tokens, and right starts of its pieces (byte offsets in it)."""

    buffer: np.ndarray
    encoded: Encoded
    starts: np.ndarray


class Fault(NamedTuple):
    """One fault: its kind, the level at which it shows, what is changed (for a person, and as numbers)."""

    kind: str
    level: str
    what: str
    change: tuple[int, ...]


def plant(fault: Fault, tables: Tables) -> Tables:
    """The tables with the fault in them; the given ones stay as they are."""
    return _PLANT[fault.kind](tables, fault.change)


def choose(tables: Tables, samples: Sequence[Sample], count: int, seed: int) -> list[Fault]:
    """`count` different faults, the kinds taking turns, each at a place that the samples exercise.

    Raises:
      InputError: the text is too small or too plain for so many.
    """
    rng = random.Random(seed)
    walk = _walk(tables.pretok, samples)
    makers: dict[str, Callable[[], list[Fault]]] = {
        "output": lambda: _outputs(tables.pretok, walk),
        "symbols": lambda: _swaps(tables.pretok, walk, rng, -(-count // len(KINDS)) + 2),
        "merge": lambda: _merges(tables.bpe, samples),
        "id": lambda: _ids(tables.bpe, samples, rng),
        "end": lambda: [] if tables.pretok.drops else _shifts(tables.bpe, samples),
    }
    found = {kind: make() for kind, make in makers.items()}
    for faults in found.values():
        rng.shuffle(faults)
    chosen: list[Fault] = []
    while len(chosen) < count:
        left = [kind for kind in KINDS if found[kind]]
        if not left:
            raise InputError(
                f"--plant {count}: the files exercise only {len(chosen)} places for faults; plant fewer, or give more "
                "text"
            )
        chosen += [found[kind].pop() for kind in left[: count - len(chosen)]]
    return chosen


# -- the pre-tokenizer ---------------------------------------------------------------------------------------------


class _Walk(NamedTuple):
    """The first characters of the text: symbol (-1: boundary), state in front and behind of each."""

    symbol: list[int]
    left: list[int]
    right: list[int]


def _walk(tables: PretokTables, samples: Sequence[Sample]) -> _Walk:
    """Walk the automata over samples from all over the text, character by character."""
    symbols: list[int] = []
    step = max(1, len(samples) * (1 << 15) // _WALKED)
    for sample in samples[::step]:
        part = sample.buffer[: 1 << 15].tobytes()
        for text in part.split(b"\xff"):
            symbols += [*_symbols(tables, text.decode("utf-8", "ignore")), -1]
    return _states(tables, symbols)


def _symbols(tables: PretokTables, text: str) -> list[int]:
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return tables.symbol[tables.block[points >> 8].astype(np.int64) * 256 + (points & 255)].tolist()


def _states(tables: PretokTables, symbols: list[int]) -> _Walk:
    left_next, right_next = tables.left_next.tolist(), tables.right_next.tolist()
    left, state = [], 0
    for x in symbols:
        left.append(state)
        state = left_next[state][x] if x >= 0 else 0
    right, state = [], 0
    for x in reversed(symbols):
        right.append(state)
        state = right_next[state][x] if x >= 0 else 0
    return _Walk(symbols, left, right[::-1])


def _starts(tables: PretokTables, walk: _Walk) -> np.ndarray:
    """bool: does a piece start at this character?"""
    x, q, r = (np.array(a) for a in walk)
    return (x >= 0) & (tables.out[q, x, r] == START)


def _outputs(tables: PretokTables, walk: _Walk) -> list[Fault]:
    """Every entry that the text reads: a start that is none, or one too many, is a change of the starts."""
    faults = []
    for q, x, r in sorted({(q, x, r) for x, q, r in zip(*walk, strict=True) if x >= 0}):
        old = int(tables.out[q, x, r])
        new = INSIDE if old == START else START
        name = repr(tables.representatives[x])
        what = f"output of {name} between left state {q} and right state {r}: {old} becomes {new}"
        faults.append(Fault("output", "pieces", what, (q, x, r, new)))
    return faults


def _swaps(tables: PretokTables, walk: _Walk, rng: random.Random, count: int) -> list[Fault]:
    """Pairs of symbols that the text holds and whose swap moves a start: walked through once more to be sure."""
    there = sorted(set(walk.symbol) - {-1})
    pairs = [(x, y) for x in there for y in range(tables.n_symbols) if y != x and (y > x or y not in there)]
    rng.shuffle(pairs)
    true = _starts(tables, walk)
    faults = []
    for x, y in pairs[:_TRIED]:
        swapped = {x: y, y: x}
        moved = _starts(tables, _states(tables, [swapped.get(s, s) for s in walk.symbol]))
        if not np.array_equal(moved, true):
            a, b = tables.representatives[x], tables.representatives[y]
            faults.append(Fault("symbols", "pieces", f"the symbols of {a!r} and {b!r} swapped", (x, y)))
        if len(faults) == count:
            break
    return faults


def _plant_output(tables: Tables, change: tuple[int, ...]) -> Tables:
    q, x, r, new = change
    out = tables.pretok.out.copy()
    out[q, x, r] = new
    return tables._replace(pretok=dataclasses.replace(tables.pretok, out=out))


def _plant_swap(tables: Tables, change: tuple[int, ...]) -> Tables:
    x, y = change
    symbol = tables.pretok.symbol.copy()
    symbol[tables.pretok.symbol == x] = y
    symbol[tables.pretok.symbol == y] = x
    return tables._replace(pretok=dataclasses.replace(tables.pretok, symbol=symbol))


# -- the vocabulary ------------------------------------------------------------------------------------------------


def _merges(tables: BpeTables, samples: Sequence[Sample]) -> list[Fault]:
    """Merges of tokens that the text has inside of a piece: nothing else makes such a token there.

    Not those of a single character, from which engines may start.
    """
    rank_of = {int(p): r for r, p in enumerate(tables.product.tolist())}
    faults = []
    for token in _used(samples, lambda s: ~_at_start(s)):
        if token in rank_of and not _one_character(tables, token):
            rank = rank_of[token]
            left, right = tables.pairs[rank].tolist()
            made = _bytes(tables, token)
            faults.append(
                Fault("merge", "ids", f"merge {rank} ({left}, {right}), which makes {made!r}, removed", (rank, -1))
            )
            other = int(tables.product[(rank + 1) % len(tables.product)])
            if other != token:
                what = f"merge {rank} ({left}, {right}) makes {other} and not {token}"
                faults.append(Fault("merge", "ids", what, (rank, other)))
    return faults


def _ids(tables: BpeTables, samples: Sequence[Sample], rng: random.Random) -> list[Fault]:
    """Tokens of several bytes that are a whole piece of the text; no character, from which engines may start."""
    tokens = np.flatnonzero(tables.token_length > 0).tolist()
    faults = []
    for token in _used(samples, lambda s: _at_start(s) & _at_end(s)):
        if tables.whole[token] and 1 < tables.token_length[token] <= WORD_BYTES and not _one_character(tables, token):
            other = rng.choice(tokens)
            if other != token:
                what = f"the piece {_bytes(tables, token)!r} is {other} and not {token}"
                faults.append(Fault("id", "ids", what, (token, other)))
    return faults


def _shifts(tables: BpeTables, samples: Sequence[Sample]) -> list[Fault]:
    """Tokens of the text; not single characters, whose length an engine needs to read bytes."""
    used = [t for t in _used(samples, lambda s: np.ones(len(s.encoded.ids), bool)) if not _one_character(tables, t)]
    return [Fault("end", "ends", f"{_bytes(tables, t)!r} is one byte longer", (t, 1)) for t in used]


def _plant_merge(tables: Tables, change: tuple[int, ...]) -> Tables:
    rank, product = change
    bpe = tables.bpe
    if product >= 0:
        made = bpe.product.copy()
        made[rank] = product
        return tables._replace(bpe=dataclasses.replace(bpe, product=made))
    left, right = (int(t) for t in bpe.pairs[rank])
    rows, pairs, single = bpe.pair_rows.copy(), bpe.pairs.copy(), bpe.byte_pair_rank.copy()
    row = (rows[:, 0] == (left | (right & 0xFFF) << 20)) & (rows[:, 1] == (right >> 12 | rank << 8))
    rows[row] = 0xFFFFFFFF
    pairs[rank] = (1 << 20) - 1  # no token has this id
    single[single == rank] = len(bpe.product)
    return tables._replace(bpe=dataclasses.replace(bpe, pair_rows=rows, pairs=pairs, byte_pair_rank=single))


def _plant_id(tables: Tables, change: tuple[int, ...]) -> Tables:
    """In every table that an engine may take the token from: the look-up of pieces, and the merge that makes it."""
    token, other = change
    rows, product, whole = tables.bpe.piece_rows.copy(), tables.bpe.product.copy(), tables.bpe.whole.copy()
    length = int(tables.bpe.token_length[token])
    rows[rows[:, 4] == (length << 20 | token), 4] = length << 20 | other
    product[product == token] = other
    whole[token] = False  # a dictionary of tokens is made of those that are marked here
    return tables._replace(bpe=dataclasses.replace(tables.bpe, piece_rows=rows, product=product, whole=whole))


def _plant_end(tables: Tables, change: tuple[int, ...]) -> Tables:
    token, by = change
    lengths = tables.bpe.token_length.copy()
    lengths[token] += by
    return tables._replace(bpe=dataclasses.replace(tables.bpe, token_length=lengths))


def _used(samples: Sequence[Sample], where: Callable[[Sample], np.ndarray]) -> list[int]:
    """Tokens that occur in such places, ascending."""
    parts = [sample.encoded.ids[where(sample)] for sample in samples]
    return np.unique(np.concatenate([np.zeros(0, np.int32), *parts])).tolist()


def _token_starts(sample: Sample) -> np.ndarray:
    ends = sample.encoded.ends
    lengths = np.diff(np.concatenate([[0], ends]))  # from the end of the token before: too long behind a gap
    starts = ends - lengths
    gap = sample.buffer[np.minimum(starts, len(sample.buffer) - 1)] == _BOUNDARY
    while gap.any():
        starts = starts + gap
        gap = (starts < ends) & (sample.buffer[np.minimum(starts, len(sample.buffer) - 1)] == _BOUNDARY)
    return starts


def _at_start(sample: Sample) -> np.ndarray:
    """bool: does the token begin a piece?"""
    return np.isin(_token_starts(sample), sample.starts)


def _at_end(sample: Sample) -> np.ndarray:
    """bool: does the token end a piece?"""
    ends = sample.encoded.ends
    behind = np.append(sample.buffer, _BOUNDARY)[ends]
    return np.isin(ends, sample.starts) | (behind == _BOUNDARY)


def _bytes(tables: BpeTables, token: int) -> bytes:
    return tables.token_blob[tables.token_offsets[token] : tables.token_offsets[token + 1]].tobytes()


def _one_character(tables: BpeTables, token: int) -> bool:
    """Is the token one character of several bytes, or a part of one?"""
    raw = _bytes(tables, token)
    return not raw.isascii() and len(raw) <= 4


_PLANT = {
    "output": _plant_output,
    "symbols": _plant_swap,
    "merge": _plant_merge,
    "id": _plant_id,
    "end": _plant_end,
}
