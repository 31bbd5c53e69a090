"""The device program stage by stage: time, kernels, and the bytes that each must move for what is in the buffer."""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _common import seconds

import toktier
from toktier import device, kernels, program, programs
from toktier.bpe.apart import PART, fall_apart
from toktier.bpe.gathered import gather
from toktier.bpe.lookup import aligned_words
from toktier.bpe.merge_flat import merge_long
from toktier.bpe.merge_tiles import merge_pieces
from toktier.bpe.starts import live_slots, starts
from toktier.compact import positions
from toktier.pretok.scan import marks
from toktier.pretok.tables import START

_ROW = 32  # bytes of a row of the piece table, with the displacement that leads there
_PAIR = 16 + 2  # bytes of a row of the pair table, likewise

PASS = 1 << 26  # bytes of the array by which the bandwidth is measured
HEADER = ["stage", "items", "time", "ns a byte", "bytes a byte", "floor", "of floor", "kernels", "loops"]


class Stage(NamedTuple):
    """items: what it works on; seconds: the best of some runs; floor: bytes moved at least; kernels, loops: places."""

    name: str
    items: int
    seconds: float
    floor: int
    kernels: int
    loops: int


def profile(tables: Any, data: jax.Array, tiles: program.Tiles, repeat: int = 5) -> tuple[list[Stage], float]:
    """The stages of one launch, each compiled by itself and run on what the one before left, and the whole's seconds.

    Raises:
      AssertionError: the stages together do not give the program's ids.
    """
    found: list[Stage] = []

    def run(name: str, items: int, function: Any, floor: Any, *arguments: Any) -> Any:
        compiled = jax.jit(function).lower(*arguments).compile(programs.compiler_options(jax.default_backend()))
        out = jax.block_until_ready(compiled(*arguments))
        best = min(_seconds(compiled, arguments) for _ in range(repeat))
        counted = kernels.count(compiled.as_text() or "")
        found.append(Stage(name, items, best, int(floor(out)), counted.kernels, counted.loops))
        return out

    bpe, n = tables.bpe, data.shape[0]
    code = run("pieces", n, lambda t, d: marks(t, d), lambda out: 2 * n, tables.scan, data)
    words = run("words", n, aligned_words, lambda out: n + out.nbytes, data)
    code = run(
        "parts",
        n,
        lambda b, d, w, c: fall_apart(b, d, w, c, jnp.bool_(True), tiles.misses),
        lambda out: 3 * n,
        *(bpe, data, words, code),
    )
    n_pieces = int(np.isin(np.asarray(code), (START, PART)).sum())
    state, missed = run(
        "look-up",
        n_pieces,
        lambda b, d, w, c: program._look_up(b, d, w, c, tiles),
        # every byte once, the slots once, and a position, a key, a row and a written slot for each piece
        lambda out: n + words.nbytes + 4 * n + n_pieces * (4 + 16 + _ROW + 4) + int(out[1].number) * 12,
        *(bpe, data, words, code),
    )
    n_missed = int(missed.number)
    state, kept, copies = run(
        "sort out",
        n_missed,
        lambda b, w, s, m: program._sort_out(b, w, s, m, tiles),
        lambda out: n_missed * (8 + 16 + 4 + 16 + 8),
        *(bpe, words, state, missed),
    )
    n_kept = int(kept.total)
    bytes_of = run(
        "gather",
        n_kept,
        lambda d, k: gather(d, k.pieces, k.total, tiles.starts),
        lambda out: 6 * n_kept,
        *(data, kept),
    )
    first = run(
        "starts",
        n_kept,
        lambda b, g: starts(b, g.data, g.head, g.total, tiles.starts),
        lambda out: 10 * n_kept,
        *(bpe, bytes_of),
    )
    slots = run(
        "slots", n_kept, lambda f, g: live_slots(f, g.total, tiles.starts), lambda out: 9 * n_kept, first, bytes_of
    )
    classes, long = run(
        "classes",
        int(kept.pieces.number),
        lambda k, s: program._classes(k.pieces, s, tiles),
        lambda out: int(kept.pieces.number) * 20,
        *(kept, slots),
    )
    for size, lanes, pieces in zip(program._CLASSES, tiles.merges, classes, strict=True):
        n_tokens = int(np.asarray(pieces.columns[1])[: int(pieces.number)].sum())
        state = run(
            f"merges, up to {size} tokens",
            int(pieces.number),
            lambda b, f, k, g, p, s, size=size, lanes=lanes: merge_pieces(b, f, k.place, g.source, p, s, size, lanes),
            # a start token's place, id and rank read, a token written, and about one more look-up
            lambda out, n_tokens=n_tokens, pieces=pieces: int(pieces.number) * 8 + n_tokens * (4 * 4 + _PAIR),
            *(bpe, first, slots, bytes_of, pieces, state),
        )
    n_bytes = int(np.asarray(long.columns[1])[: int(long.number)].sum())
    state = run(
        "merges, longer",
        int(long.number),
        functools.partial(_longer, tiles),
        lambda out: int(long.number) * 8 + n_bytes * (4 + 4 + 4 + _PAIR),
        *(bpe, bytes_of, first, long, state),
    )
    state = run(
        "copies",
        int(copies.number),
        lambda s, c: program._copy(s, c, tiles.copies),
        lambda out: int(copies.number) * (8 + 2 * 2 * 4),
        *(state, copies),
    )
    ids, _, count = run(
        "output",
        n,
        functools.partial(_output, bpe),
        lambda out: 4 * n + int(out[2]) * (4 + 4 + 4 + 4),
        state,
    )
    options = programs.compiler_options(jax.default_backend())
    whole = jax.jit(program.encode, static_argnums=2, compiler_options=options)
    want, _, n_want = jax.block_until_ready(whole(tables, data, tiles))
    assert int(count) == int(n_want)
    assert np.array_equal(np.asarray(ids)[: int(count)], np.asarray(want)[: int(count)])
    return found, min(_seconds(lambda t, d: whole(t, d, tiles), (tables, data)) for _ in range(repeat))


def _longer(tiles: program.Tiles, bpe: Any, bytes_of: Any, first: Any, long: Any, state: jax.Array) -> jax.Array:
    def merge(state: jax.Array) -> jax.Array:
        return merge_long(bpe, bytes_of, first, long, state, tiles.flat, tiles.starts)

    return jax.lax.cond(long.number > 0, merge, lambda state: state, state)


def _output(bpe: Any, state: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    place, count = positions(state > 0)
    ids = state[place] - 1
    return ids, place + bpe.length[ids], count


def _seconds(function: Any, arguments: tuple[Any, ...]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - begin


def bandwidth(n_bytes: int) -> float:
    """Bytes a second that one pass over an array of this size reads and writes."""
    data = jnp.zeros(n_bytes // 4, jnp.int32)
    add = jax.jit(lambda x: x + 1)
    jax.block_until_ready(add(data))
    return 2 * data.nbytes / min(_seconds(add, (data,)) for _ in range(9))


def rows(source: str, corpus: Any, size: int, speed: float, repeat: int) -> tuple[list[list[str]], dict[str, Any]]:
    """The table of one text, and its figures."""
    engine = toktier.load(source).core.device
    buffer = np.frombuffer(corpus.fresh(size).encode(), np.uint8)
    data = engine._padded(buffer)
    stages, whole = profile(engine.tables, data, device.tiles_for(data.shape[0], engine.backend), repeat)
    n = len(buffer)
    table = [stage_cells(s, n, speed) for s in stages]
    total, floor = sum(s.seconds for s in stages), sum(s.floor for s in stages) / speed
    table.append(["sum", "", seconds(total), f"{total / n * 1e9:.2f}", "", seconds(floor), f"{total / floor:.0f} x"])
    least = (n + 8 * n / 4) / speed  # text in, 8 bytes out a token of four bytes
    table.append(["whole program", "", seconds(whole), f"{whole / n * 1e9:.2f}", "", seconds(least)])
    table[-1].append(f"{whole / least:.0f} x")
    table = [row + [""] * (len(HEADER) - len(row)) for row in table]
    return table, {"text": corpus.name, "bytes": n, "whole": whole, "stages": [s._asdict() for s in stages]}


def stage_cells(stage: Any, n: int, speed: float) -> list[str]:
    """One stage as table cells."""
    floor = stage.floor / speed
    least = (
        ["0", "-", "-"] if not floor else [f"{stage.floor / n:.1f}", seconds(floor), f"{stage.seconds / floor:.0f} x"]
    )
    time = [seconds(stage.seconds), f"{stage.seconds / n * 1e9:.2f}"]
    return [stage.name, str(stage.items), *time, *least, str(stage.kernels), str(stage.loops)]
