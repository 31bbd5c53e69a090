"""A batch over several devices: one buffer each, one launch for all of them.

The buffer of the whole batch is cut into about equal parts where its sides can be tokenized apart, so a single long
document is spread too, and the ids are those of any other engine.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from toktier import chunks, program, programs
from toktier.batch import Batch
from toktier.device import CAPACITIES, DeviceEngine, tiles_for
from toktier.encoded import Encoded
from toktier.errors import EngineError, InputError

if TYPE_CHECKING:
    from toktier.added import Mode
    from toktier.core import Core
    from toktier.pretok.tables import PretokTables
    from toktier.tokenizer import Tokenizer

AXIS = "batch"


def encode_sharded(
    tok: Tokenizer,
    texts: Iterable[str],
    *,
    devices: Sequence[jax.Device] | None = None,
    add_special_tokens: bool = False,
    special_tokens: Mode | None = None,
) -> Batch:
    """The ids of many texts, the work spread evenly over devices; as `tok.encode_batch(texts, engine="device")`.

    Args:
      tok: the tokenizer.
      texts: the documents.
      devices: where to run; None for all devices of this process (`jax.local_devices()`).
      add_special_tokens, special_tokens: see `Tokenizer`.

    Returns:
      Batch(ids int32[k], offsets int64[n + 1]).

    Raises:
      as `Tokenizer.encode_batch` with engine="device"; InputError where `devices` is empty.
    """
    from toktier.tokenizer import GROUP, _checked_list

    listed = _checked_list(texts)
    tok._engine("device", 0)  # raises where the reference runs the tokenizer
    engine = _engine_of(tok.core, tuple(jax.local_devices() if devices is None else devices))
    group = GROUP * len(engine.devices)
    return tok._batch(listed, add_special_tokens, special_tokens, "device", engine.encode_buffer, group)


class ShardedEngine:
    """Runs the device program on several devices at once.

    Args:
      engine: the tokenizer's engine on one device; its tables are copied to each.
      pretok: the tokenizer's pre-tokenizer, which says where a buffer may be cut.
      devices: at least one, all of one kind, all of this process.

    Safe from any thread.  As for DeviceEngine, a process forked later must not use it.
    """

    def __init__(self, engine: DeviceEngine, pretok: PretokTables, devices: Sequence[jax.Device]) -> None:
        if not devices:
            raise InputError("devices is empty; pass None for all devices")
        self.devices = tuple(devices)
        self.backend = self.devices[0].platform
        self.mesh = Mesh(np.array(self.devices), (AXIS,))
        self.capacities = CAPACITIES.get(self.backend, CAPACITIES["default"])
        self._single, self._pretok = engine, pretok
        self._tables = jax.device_put(engine.tables, NamedSharding(self.mesh, P()))

    def encode_buffer(self, buffer: np.ndarray) -> Encoded:
        """Tokens of a buffer: uint8[n], UTF-8 with 0xFF as boundary; as `DeviceEngine.encode_buffer`."""
        self._single._check_process()
        buffer = np.asarray(buffer, np.uint8)
        n, width = len(buffer), len(self.devices)
        most = self.capacities[-1] - 1
        launches = -(-n // (most * width))
        # parts end at the last cut in front of their target, so a little more than the even share fits everything
        target = min(most, -(-n // (launches * width)) + 256)
        parts = chunks.plan(self._pretok, buffer, target)
        found = [self._launch(buffer, parts[k : k + width]) for k in range(0, len(parts), width)]
        return Encoded(
            np.concatenate([ids for part in found for ids, _ in part]),
            np.concatenate([ends for part in found for _, ends in part]),
        )

    def _launch(self, buffer: np.ndarray, parts: list[tuple[int, int]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int32[k], ends int64[k]) of each part, at most one for a device."""
        capacity = self._capacity(max(stop - start for start, stop in parts))
        data = np.full((len(self.devices), capacity), chunks.BOUNDARY, np.uint8)
        for row, (start, stop) in enumerate(parts):
            data[row, : stop - start] = buffer[start:stop]
        placed = jax.device_put(data, NamedSharding(self.mesh, P(AXIS)))
        ids, ends, counts = _program(self.mesh, tiles_for(capacity, self.backend))(self._tables, placed)
        known = np.asarray(counts).tolist()
        shards = zip(parts, known, _rows(ids), _rows(ends), strict=False)
        return [(i[:k], e[:k].astype(np.int64) + start) for (start, _), k, i, e in shards]

    def _capacity(self, size: int) -> int:
        for capacity in self.capacities:
            if size < capacity:
                return capacity
        raise EngineError(
            f"a stretch of {size} bytes that no certified cut divides does not fit one device's share "
            f"(at most {self.capacities[-1] - 1}); encode_batch with engine='device' or 'host' can take it"
        )


def _rows(array: jax.Array) -> list[np.ndarray]:
    """The rows of an array with one row a device, each fetched from its own device."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data)[0] for shard in shards]


@functools.cache
def _program(mesh: Mesh, tiles: program.Tiles) -> Any:
    """The program over uint8[devices, capacity]: ids, ends int32[devices, capacity] and counts int32[devices]."""

    def on_one(tables: program.DeviceTables, data: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        ids, ends, count = program.encode(tables, data[0], tiles)
        return ids[None], ends[None], count[None]

    # the loops' carries start as constants, which are not marked as varying over the mesh
    mapped = jax.shard_map(on_one, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P(AXIS), check_vma=False)
    return jax.jit(mapped, compiler_options=programs.compiler_options(mesh.devices.flat[0].platform))


_engines: weakref.WeakKeyDictionary[Core, dict[tuple[jax.Device, ...], ShardedEngine]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _engine_of(core: Core, devices: tuple[jax.Device, ...]) -> ShardedEngine:
    """The engine of a tokenizer's core on these devices, made once."""
    with _lock:
        made = _engines.setdefault(core, {})
        if devices not in made:
            made[devices] = ShardedEngine(core.device, core.tables.pretok, devices)
        return made[devices]
