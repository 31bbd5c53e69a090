"""The device engine: buffers of any size through the one compiled program, on whatever backend JAX has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from toktier import chunks, program, programs
from toktier.bpe.lookup import lookup_tables
from toktier.cores import side_by_side, usable
from toktier.encoded import Encoded
from toktier.errors import EngineError
from toktier.pretok.scan import scan_tables

if TYPE_CHECKING:
    from toktier.core import Tables

# Bytes of a launch.  A CPU chunk stays in the cache and several run side by side; a GPU wants few and wide launches.
# Every capacity is one compilation a family.  The larger ones are only compiled for a text that no cut divides.
CAPACITIES = {"cpu": (1 << 14, 1 << 18), "default": (1 << 16, 1 << 18, 1 << 20, 1 << 22)}
_UNDIVIDED = (1 << 20, 1 << 22, 1 << 24, 1 << 26)
_MAX_BYTES = _UNDIVIDED[-1] - 1


def tiles_for(capacity: int, backend: str) -> program.Tiles:
    """Elements a step of each stage.  On the CPU small enough for the cache, on a GPU few steps."""
    if backend == "cpu":
        wide = min(capacity, 1 << 14)
        # a large capacity is only used for one long piece after another, a small one for the odd long word
        flat = 1024 if capacity <= 1 << 18 else wide
        return program.Tiles(4096, 4096, 4096, min(capacity, 4096), 512, flat, (128, 64, 32, 32))
    wide = capacity // 4
    merges = wide // 4, wide // 8, wide // 16, wide // 32
    return program.Tiles(wide, wide, wide, wide, max(32, wide // 16), wide, merges)


# Programs that have run in this process, by shapes of tables and capacity.
_ran: set[tuple[Any, int]] = set()

_piece_marks = jax.jit(lambda tables, data: program.piece_marks(tables.scan, data))


def trace_count() -> int:
    """How many programs this process has traced or brought back: one for each shape of buffer and tables."""
    return programs.count()


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache directory, unless the user has told JAX where (or told it not to)."""
    from toktier import cache

    chosen = getattr(jax.config, "jax_compilation_cache_dir", None)
    if chosen is not None or "JAX_ENABLE_COMPILATION_CACHE" in os.environ:
        return
    folder = cache.directory() / "xla"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return  # nowhere to keep them: compile in every process
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


class DeviceEngine:
    """Runs the device program over buffers.

    Args:
      tables: pretok and bpe tables of one tokenizer.

    Safe from any thread.  Must not be used in a process forked after its creation: the threads of XLA do not survive a
    fork, so that raises EngineError instead of hanging.
    """

    def __init__(self, tables: Tables) -> None:
        use_compilation_cache()
        self._pretok = tables.pretok
        self.backend = jax.default_backend()
        made = program.DeviceTables(scan_tables(tables.pretok), lookup_tables(tables.bpe))
        self.tables: program.DeviceTables = jax.device_put(made)
        self.capacities = CAPACITIES.get(self.backend, CAPACITIES["default"])
        self._shapes = programs.shapes_of(self.tables)
        self._programs: dict[int, programs.Run] = {}
        self._process = os.getpid()

    def encode_buffer(self, buffer: np.ndarray, compiling: bool = True) -> Encoded:
        """Tokens of a buffer.

        Args:
          buffer: uint8[n], UTF-8 with 0xFF as boundary, any n (beyond 64 MiB only if some cut divides it).
          compiling: whether a program that has not run in this process may be compiled for it.

        Returns:
          Encoded(ids int32[k], ends int64[k]).

        Raises:
          EngineError: as the text says; with `compiling=False` also where a program would have to be compiled.
        """
        self._check_process()
        buffer = np.asarray(buffer, np.uint8)
        parts = self._parts(buffer)
        if not compiling:
            for capacity in {self._capacity(stop - start) for start, stop in parts}:
                if (self._shapes, capacity) not in _ran:
                    raise EngineError(f"the device program for {capacity} bytes is not compiled; warmup() does that")
        if len(parts) == 1:
            ids, ends = self._launch(buffer)
            return Encoded(ids.copy(), ends.astype(np.int64))
        results = list(self._map(lambda part: self._launch(buffer[part[0] : part[1]]), parts))
        return Encoded(
            np.concatenate([ids for ids, _ in results]),
            np.concatenate([ends + np.int64(part[0]) for (_, ends), part in zip(results, parts, strict=True)]),
        )

    def piece_marks(self, buffer: np.ndarray) -> np.ndarray:
        """int64[p]: byte offsets in the buffer where pieces begin."""
        self._check_process()
        buffer = np.asarray(buffer, np.uint8)
        marks = []
        for start, stop in self._parts(buffer):
            found, count = _piece_marks(self.tables, self._padded(buffer[start:stop]))
            marks.append(np.asarray(found)[: int(count)] + np.int64(start))
        return np.concatenate(marks)

    def warmup(self, sizes: Sequence[int] | None = None, pieces: bool = False) -> None:
        """Compiles (or loads from the cache) the programs for buffers of these sizes in bytes; None: all usual ones.

        `pieces`: those of `piece_marks` too.
        """
        self._check_process()
        wanted = {self._capacity(min(s, self.capacities[-1] - 1)) for s in sizes} if sizes else set(self.capacities)
        from tqdm import tqdm

        # disable=None: a bar only on a terminal
        for capacity in tqdm(sorted(wanted), "compiling", unit="program", disable=None, leave=False):
            part = np.full(capacity // 2, ord("a"), np.uint8)
            self._launch(part)
            if pieces:
                _piece_marks(self.tables, self._padded(part))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise EngineError(
                "engine='device' was started before this process was forked, and XLA does not survive a fork; "
                "start workers with multiprocessing's 'spawn' method, or use engine='host' in them"
            )

    def _parts(self, buffer: np.ndarray) -> list[tuple[int, int]]:
        most = self.capacities[-1] - 1
        if len(buffer) <= most:
            return [(0, len(buffer))]
        if self.backend != "cpu":
            return chunks.plan(self._pretok, buffer, most)
        # as many chunks as keep all cores busy to the end, of about equal size
        workers = usable()
        rounds = -(-len(buffer) // (most * workers))
        target = -(-len(buffer) // (rounds * workers)) + 256
        return chunks.plan(self._pretok, buffer, min(most, target))

    def _capacity(self, size: int) -> int:
        for capacity in (*self.capacities, *_UNDIVIDED):
            if size < capacity:
                return capacity
        raise EngineError(
            f"engine='device' cannot take {size} bytes that no certified cut divides (at most {_MAX_BYTES}); "
            "engine='host' can"
        )

    def _padded(self, part: np.ndarray) -> jax.Array:
        data = np.full(self._capacity(len(part)), chunks.BOUNDARY, np.uint8)
        data[: len(part)] = part
        return jax.device_put(data)

    def _launch(self, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32[k], ends int32[k]); views of the device's buffers where it shares memory with the host."""
        data = self._padded(part)
        n = data.shape[0]
        run = self._programs.get(n)
        if run is None:
            run = programs.program_for(self.tables, n, tiles_for(n, self.backend), self.backend)
            self._programs[n] = run
        if self.backend == "cpu":
            ids, ends, count = run(self.tables, data)
            k = int(count)
            _ran.add((self._shapes, n))
            return np.asarray(ids)[:k], np.asarray(ends)[:k]
        out = np.asarray(run(self.tables, data))
        _ran.add((self._shapes, n))
        k = int(out[0])
        return out[1 : 1 + k], out[1 + n : 1 + n + k]

    def _map(self, f, parts):
        """Several chunks at a time on a CPU, where a launch keeps one core busy; one after the other on a GPU."""
        return map(f, parts) if self.backend != "cpu" else side_by_side(f, parts)
