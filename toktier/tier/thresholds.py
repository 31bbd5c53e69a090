"""From which size on a text goes to the device: given, measured on this machine, or as last measured here."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import cache, routing
from ..errors import InputError

if TYPE_CHECKING:
    from ..core import Core

SOURCES = ("given", "default", "stored", "measured")
_VERSION = 1  # of what is measured
_JOIN = 4  # a launch that is gathered anyway takes texts of this fraction of the device's size
_LOWEST, _HIGHEST = 1 << 12, 1 << 24
_SIZES = (1 << 13, 1 << 16)  # bytes of text that is timed
_BUDGET = 0.3  # seconds
_RUNS = 9


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Sizes by which the router decides, in bytes of what is to be tokenized (for a session: of its window).

    Attributes:
      device: from this size on a text goes to the device.
      join: from this size on a text joins a launch of its tokenizer that is being gathered anyway; 0 for a quarter
        of `device`.
      source: "given", "default", "stored" or "measured".
      measured: what was measured, by name, in seconds: host and device at two sizes.

    Raises:
      InputError: a size below 1, or `join` above `device`.
    """

    device: int
    join: int = 0
    source: str = "given"
    measured: dict[str, float] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.join:
            object.__setattr__(self, "join", max(1, self.device // _JOIN))
        if not 1 <= self.join <= self.device:
            raise InputError(f"thresholds: join={self.join}, device={self.device}: use 1 <= join <= device")


class Limits:
    """The thresholds in force; `now` is replaced as more becomes known."""

    def __init__(self, given: Thresholds | None) -> None:
        self._given = given
        self.now = given or Thresholds(routing.SMALL, source="default")

    def resolve(self, core: Core, measure: bool) -> None:
        """Take what was stored on this machine, else measure now, if asked to; needs a device that is started."""
        if self._given is not None:
            return
        key = _key(core)
        stored = cache.get("tier", key)
        if stored is not None:
            self.now = Thresholds(stored.meta["device"], source="stored", measured=stored.meta["measured"])
        elif measure:
            self.now = measured(core)
            cache.put("tier", key, {}, {"device": self.now.device, "measured": self.now.measured})
        else:
            backend = core.device.backend
            self.now = Thresholds(routing.CROSSOVER.get(backend, routing.SMALL), source="default")


def measured(core: Core) -> Thresholds:
    """Times both engines on text that neither has seen, and finds the size at which they meet.

    The device program must have been compiled.  Takes some 0.3 s.  Between its two sizes, and beyond, each engine's
    time is taken as a straight line.
    """
    text = _Text(core)
    times: dict[str, float] = {}
    for size in _SIZES:
        for name, engine in (("device", core.device), ("host", core.host)):
            times[f"{name}_{size}"] = _seconds(engine.encode_buffer, lambda n=size: text.fresh(n))  # type: ignore[misc]
    return Thresholds(_crossover(times), source="measured", measured=times)


def _seconds(call: Callable[[np.ndarray], Any], text: Callable[[], np.ndarray]) -> float:
    """The median of a few runs, within the budget, behind one that is not counted."""
    call(text())
    taken: list[float] = []
    while not taken or (len(taken) < _RUNS and sum(taken) < _BUDGET / (2 * len(_SIZES))):
        data = text()
        begin = time.perf_counter()
        call(data)
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken))


def _crossover(times: dict[str, float]) -> int:
    small, large = _SIZES
    host = (times[f"host_{large}"] - times[f"host_{small}"]) / (large - small)
    device = (times[f"device_{large}"] - times[f"device_{small}"]) / (large - small)
    ahead = (times[f"device_{small}"] - device * small) - (times[f"host_{small}"] - host * small)
    if ahead <= 0:
        return _LOWEST
    return int(min(max(ahead / (host - device), _LOWEST), _HIGHEST)) if host > device else _HIGHEST


class _Text:
    """Text of a tokenizer's own tokens, some often and most seldom, never the same twice."""

    def __init__(self, core: Core) -> None:
        rng = np.random.default_rng(1)
        spec = core.spec
        words = []
        for token in rng.permutation(spec.n_ids)[:8192].tolist():
            raw = spec.token_bytes(token)
            if raw and raw.isascii() and raw.decode().strip():
                words.append(raw)
        self._words, self._rng = words or [b" text"], rng

    def fresh(self, size: int) -> np.ndarray:
        """uint8[size]."""
        places = (len(self._words) * self._rng.random(size) ** 3).astype(int)
        data = b"".join([self._words[k] for k in places[: size // 2].tolist()])
        while len(data) < size:
            data += data
        return np.frombuffer(data[:size], np.uint8)


def _key(core: Core) -> str:
    """Of the machine, its device, and the versions of what runs."""
    import jax

    from .. import __version__

    device = jax.devices()[0]
    parts = [platform.node(), platform.machine(), os.cpu_count(), device.platform, device.device_kind]
    parts += [jax.__version__, __version__, _VERSION]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
