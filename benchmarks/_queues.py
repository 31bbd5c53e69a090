"""Queues before many cores and accelerators, and sessions that are forgotten: discrete-event simulations (simpy)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import simpy

from toktier.workload import Call


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A request: when it comes, how long it works, and what of its latency is neither work nor waiting.

    `session` binds it to a core where cores own sessions; `accelerator` says that an accelerator does the work.
    """

    at: float
    work: float
    rest: float = 0.0
    kind: str = ""
    session: int = 0
    accelerator: bool = False


@dataclasses.dataclass(frozen=True)
class Served:
    """What a simulation found: seconds from arrival to answer by kind of job, and how busy everything was."""

    latency: dict[str, np.ndarray]
    utilisation: float
    accelerator_utilisation: float

    def quantile(self, q: float, kind: str | None = None) -> float:
        """A quantile (0 to 100) of one kind or all, NaN where there was none."""
        parts = list(self.latency.values()) if kind is None else [self.latency.get(kind, np.zeros(0))]
        values = np.concatenate([*parts, np.zeros(0)])
        return float(np.percentile(values, q)) if len(values) else float("nan")

    @property
    def mean(self) -> float:
        """Mean latency of all."""
        return float(np.mean(np.concatenate(list(self.latency.values()))))


def simulate(jobs: Iterable[Job], cores: int, *, accelerators: int = 0, owned: bool = False) -> Served:
    """First come, first served.

    Args:
      cores: one queue before all of them, or, where sessions are `owned`, one before each.
      accelerators: with a queue of their own; jobs for them run on cores where there are none.
    """
    env = simpy.Environment()
    pools = [simpy.Resource(env) for _ in range(cores)] if owned else [simpy.Resource(env, cores)]
    extra = simpy.Resource(env, accelerators) if accelerators else None
    found: dict[str, list[float]] = {}
    busy = {"core": 0.0, "accelerator": 0.0}

    def run(job: Job) -> Generator[Any, Any, None]:
        use = extra if job.accelerator and extra is not None else None
        pool = use or pools[job.session % len(pools)]
        with pool.request() as turn:
            yield turn
            yield env.timeout(job.work)
        busy["core" if use is None else "accelerator"] += job.work
        found.setdefault(job.kind, []).append(env.now - job.at + job.rest)

    def arrive() -> Generator[Any, Any, None]:
        for job in jobs:
            if job.at > env.now:
                yield env.timeout(job.at - env.now)
            env.process(run(job))

    env.process(arrive())
    env.run()
    span = max(env.now, 1e-12)
    return Served(
        {kind: np.array(values) for kind, values in found.items()},
        busy["core"] / (span * cores),
        busy["accelerator"] / (span * accelerators) if accelerators else 0.0,
    )


def poisson(rate: float, count: int, draw: Callable[[random.Random], Job], seed: int = 0) -> Iterator[Job]:
    """So many jobs, so many a second on average, whose other properties `draw` makes."""
    rng = random.Random(f"poisson {seed}")
    at = 0.0
    for _ in range(count):
        at += rng.expovariate(rate)
        yield dataclasses.replace(draw(rng), at=at)


def fewest(enough: Callable[[int], bool], most: int = 1 << 14) -> int | None:
    """The smallest number of cores that is enough, None if `most` are not; more are taken never to be worse."""
    high = 1
    while not enough(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


@dataclasses.dataclass(frozen=True)
class Kept:
    """Sessions kept for a time after their last call.

    Attributes:
      hit_rate: share of calls whose session's state was there and of use.
      mean_bytes: of state, for one call a second.
      scanned_share: characters tokenized, by those of all contexts.
    """

    hit_rate: float
    mean_bytes: float
    scanned_share: float


def keep(calls: Sequence[Call], ttl: float, bytes_a_char: float, starts: float, seed: int = 0) -> Kept:
    """Sessions begin by a Poisson process, `starts` a second, and make their calls after the pauses of their traces.

    Counted from the fifth day on until the last session begins; over all where that is not twice as long.
    """
    env, rng = simpy.Environment(), random.Random(f"keep {seed}")
    by_name: dict[str, list[Call]] = {}
    for call in calls:
        by_name.setdefault(call.session, []).append(call)
    begins, at = [], 0.0
    for _ in by_name:
        at += rng.expovariate(starts)
        begins.append(at)
    held = 0.0
    changes: list[tuple[float, float]] = []
    events: list[tuple[float, bool, int, int]] = []  # when, hit, scanned, context

    def change(size: float) -> None:
        nonlocal held
        held += size
        changes.append((env.now, held))

    def session(begin: float, mine: list[Call]) -> Generator[Any, Any, None]:
        yield env.timeout(begin)
        size, expires = 0.0, -1.0
        for call in mine:
            due = env.now + (call.pause or 0.0)
            if size and due > expires:  # forgotten on the way
                yield env.timeout(max(0.0, expires - env.now))
                change(-size)
                size = 0.0
            yield env.timeout(due - env.now)
            hit = size > 0 and not call.whole
            events.append((env.now, hit, call.append_chars if hit else call.context_chars, call.context_chars))
            grown = call.context_chars * bytes_a_char
            change(grown - size)
            size, expires = grown, env.now + ttl
        yield env.timeout(ttl)
        change(-size)

    for begin, mine in zip(begins, by_name.values(), strict=True):
        env.process(session(begin, mine))
    env.run()
    warm, last = 5 * 86_400.0, begins[-1]
    low, high = (warm, last) if last > 2 * warm else (0.0, env.now)
    counted = [e for e in events if low <= e[0] <= high]
    times = np.array([low, *(t for t, _ in changes if low < t < high), high])
    before = [h for t, h in changes if t <= low]
    levels = np.array([before[-1] if before else 0.0, *(h for t, h in changes if low < t < high)])
    spans = np.diff(times)
    rate = len(counted) / max(high - low, 1e-9)
    return Kept(
        sum(hit for _, hit, _, _ in counted) / len(counted),
        float((levels * spans).sum() / max(spans.sum(), 1e-9) / rate),
        sum(e[2] for e in counted) / max(sum(e[3] for e in counted), 1),
    )
