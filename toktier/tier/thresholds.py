"""From which size on a text goes to the device: given, measured on this machine, or as last measured here."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import platform
import time
from typing import TYPE_CHECKING

import numpy as np

from .. import cache, routing
from ..errors import InputError

if TYPE_CHECKING:
    from ..core import Core

_VERSION = 1  # of what is measured
_JOIN = 4  # a launch that is gathered anyway takes texts of this fraction of the device's size
_SIZES = (1 << 13, 1 << 15, 1 << 17)  # bytes of text that is timed
_ROUNDS = 3
_TRUST = 8  # a measured size is within this factor of the package's own
_JOINED = 0.125  # of the words of the timed text


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
        self.resolved = given is not None  # else the least of the package's own, for a device that is not started
        self.now = given or Thresholds(routing.SMALL, source="default")

    def never(self) -> None:
        """No text goes to the device, until `resolve` says otherwise."""
        self.now = Thresholds(routing.NEVER, source="default")

    def resolve(self, core: Core, measure: bool | None) -> None:
        """Take what was stored on this machine, else measure, if asked to; needs a device that is started.

        Args:
          measure: True to measure if nothing is stored, None to measure whatever is stored.
        """
        if self._given is not None or (self.resolved and measure is False):
            return
        key = _key(core)
        stored = None if measure is None else cache.get("tier", key)
        if stored is not None:
            self.now = Thresholds(stored.meta["device"], source="stored", measured=stored.meta["measured"])
        elif measure is not False:
            self.now = measured(core)
            cache.put("tier", key, {}, {"device": self.now.device, "measured": self.now.measured})
        else:
            backend = core.device.backend
            self.now = Thresholds(routing.CROSSOVER.get(backend, routing.SMALL), source="default")
        self.resolved = True


def measured(core: Core) -> Thresholds:
    """Times both engines on text that neither has seen, and finds the size from which the device is quicker.

    The device program must have been compiled.  Takes some 0.3 s on a machine that does nothing else.  The least of
    the times of each size counts, since other work only adds to them, and the result stays within a factor of eight of
    the package's own: no disturbance while it was taken can shut the device off, or send it every word.
    """
    text = _Text(core)
    times: dict[str, float] = {}
    for _ in range(_ROUNDS):
        for size in _SIZES:
            for name, engine in (("device", core.device), ("host", core.host)):
                data, key = text.fresh(size), f"{name}_{size}"
                begin = time.perf_counter()
                engine.encode_buffer(data)
                times[key] = min(times.get(key, math.inf), time.perf_counter() - begin)
    usual = routing.CROSSOVER.get(core.device.backend, routing.SMALL)
    size = _crossover(times)
    if usual != routing.NEVER:
        size = min(max(size, usual // _TRUST), usual * _TRUST)
    return Thresholds(size, source="measured", measured=times)


def _crossover(times: dict[str, float]) -> int:
    """The size from which on the device is quicker at every size that was timed; between two of them by ratio."""
    ahead = [times[f"host_{size}"] / times[f"device_{size}"] for size in _SIZES]  # above 1: the device is quicker
    k = len(_SIZES)
    while k and ahead[k - 1] > 1:
        k -= 1
    if k == len(_SIZES):
        return routing.NEVER
    if k == 0:
        return 1
    low, high = _SIZES[k - 1], _SIZES[k]
    share = -math.log(ahead[k - 1]) / (math.log(ahead[k]) - math.log(ahead[k - 1]))
    return int(low * (high / low) ** share)


class _Text:
    """Words of a tokenizer's own, some often and most seldom, one in eight put together; never twice the same."""

    def __init__(self, core: Core) -> None:
        self._rng = np.random.default_rng(1)
        tokens = map(core.spec.token_bytes, self._rng.permutation(core.spec.n_ids)[:16384].tolist())
        self._words = [t for t in tokens if t.isascii() and t[1:].isalpha() and t[:1] in (b" ", b".", b"_")]
        self._words = self._words or [b" text"]

    def fresh(self, size: int) -> np.ndarray:
        """uint8[size]."""
        count = size // 4 + 16
        places = (len(self._words) * self._rng.random(count) ** 3).astype(int).tolist()
        joined = (self._rng.random(count) < _JOINED).tolist()
        data = b"".join([self._words[k][j:] for k, j in zip(places, joined, strict=True)])
        return np.frombuffer((data * (size // len(data) + 1))[:size], np.uint8)


def _key(core: Core) -> str:
    """Of the machine, its device, and the versions of what runs."""
    import jax

    from .. import __version__

    device = jax.devices()[0]
    parts = [platform.node(), platform.machine(), os.cpu_count(), device.platform, device.device_kind]
    parts += [jax.__version__, __version__, _VERSION]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
