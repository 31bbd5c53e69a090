"""Load for front ends: requests with the times at which they are due, and what became of them.

Latency is measured from when a request was due, not from when it was sent: a front end that holds up the generator
gains nothing by it.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from _frontend import TIERS, FrontEnd, Reply

from toktier.workload import Call, Material, generate

CLASSES = ("continuation", "initialization")
SHARE = 0.023  # of requests that bring a whole context: the paper's recorded mixture
PATIENCE = 120.0  # seconds without any answer until the rest counts as lost


@dataclasses.dataclass(slots=True)
class Request:
    """One call: `append` comes behind the first `keep` characters of the session's context (all of it for None)."""

    session: str
    kind: str  # one of CLASSES
    append: str
    keep: int | None = None
    due: float = 0.0
    forget: str = ""  # a session that nobody will ask for again


@dataclasses.dataclass(slots=True)
class Outcome:
    """What became of a request; `latency` is from when it was due, None if it was lost."""

    request: Request
    latency: float | None
    late: float  # how much later than due it was sent
    reply: Reply | None


class Texts:
    """The contexts of the sessions, as the clients have them."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def message(self, request: Request, whole: bool) -> tuple[str, str]:
        """(operation, text) for a front end, and the context brought up to date."""
        old = self.of.get(request.session, "")
        kept = old if request.keep is None else old[: request.keep]
        full = self.of[request.session] = kept + request.append
        self.of.pop(request.forget, None)
        if not whole and len(kept) == len(old):
            return "append", request.append
        return "update", full


class Mixture:
    """The paper's mixture: calls that continue one of so many live sessions, and now and then a whole context.

    Args:
      sessions: live at a time; their contexts are quantiles of the generated ones.
      context: characters of every context instead.
      append: characters of every append instead.
      share: of requests that bring a whole context, of a session that takes another's place.
      most: characters of a context; a session that would have more is replaced.
    """

    def __init__(
        self,
        sessions: int = 16,
        *,
        context: int | None = None,
        append: int | None = None,
        share: float = SHARE,
        most: int = 1_500_000,
        seed: int = 0,
    ) -> None:
        calls = list(generate(120, seed=seed))
        self._rng = random.Random(f"mixture {seed}")
        self._material = Material(seed)
        self._share, self._most = share, max(most, 2 * (context or 0))
        self._appends = [append] if append else [c.append_chars for c in calls if not c.whole]
        first = int(0.7 * self._most)  # characters: a new session has room to grow
        self._whole = [min(c.context_chars, first) for c in calls if c.whole] if context is None else [context]
        sizes = sorted(min(c.context_chars, first) for c in calls)
        self._names = itertools.count()
        self._sizes: dict[str, int] = {}
        self._wanted = [context or sizes[len(sizes) * (2 * i + 1) // (2 * sessions)] for i in range(sessions)]

    def opening(self) -> list[Request]:
        """Whole contexts for all live sessions, anew; those of before are forgotten."""
        old = [*self._sizes, *[""] * len(self._wanted)]
        self._sizes = {}
        return [self._open(size, forget) for size, forget in zip(self._wanted, old, strict=False)]

    def __iter__(self) -> Iterator[Request]:
        while True:
            name = self._rng.choice(list(self._sizes))
            chars = self._rng.choice(self._appends)
            if self._rng.random() < self._share or self._sizes[name] + chars > self._most:
                del self._sizes[name]
                yield self._open(self._rng.choice(self._whole), name)
            else:
                self._sizes[name] += chars
                yield Request(name, CLASSES[0], self._material.append(chars, int(chars * 0.3)))

    def _open(self, chars: int, forget: str) -> Request:
        name = f"m{next(self._names)}"
        self._sizes[name] = chars
        return Request(name, CLASSES[1], self._material.text(chars), forget=forget)


class Replay:
    """The calls of traces, so many sessions side by side; each session's in order.

    Args:
      calls: of a trace, with or without text.
      again: begin anew, under other names, when all were replayed.
    """

    def __init__(self, calls: Iterable[Call], sessions: int = 16, *, seed: int = 0, again: bool = False) -> None:
        self._rng = random.Random(f"replay {seed}")
        self._by_name: dict[str, list[Call]] = {}
        for call in Material(seed).fill(iter(calls)):
            self._by_name.setdefault(call.session, []).append(call)
        self._side_by_side, self._again = sessions, again

    def __len__(self) -> int:
        return sum(map(len, self._by_name.values()))

    def opening(self) -> list[Request]:
        """Nothing: sessions begin where their traces do."""
        return []

    def __iter__(self) -> Iterator[Request]:
        for lap in itertools.count():
            names = list(self._by_name)
            self._rng.shuffle(names)
            active: dict[str, Iterator[Call]] = {}
            while names or active:
                while names and len(active) < self._side_by_side:
                    name = names.pop()
                    active[name] = iter(self._by_name[name])
                name = self._rng.choice(list(active))
                call = next(active[name], None)
                if call is None:
                    del active[name]
                    continue
                kind = CLASSES[1] if call.whole else CLASSES[0]
                last = call is self._by_name[name][-1]
                session = f"{name} {lap}" if lap else name
                keep = call.keep_chars if call.event != "continue" else None
                yield Request(session, kind, call.append or "", keep, forget=session if last else "")
            if not self._again:
                return


def due_times(rate: float, count: int, arrival: str, seed: int, burst: int = 8) -> list[float]:
    """Seconds at which requests are due: "poisson" with so many a second, or "burst": so many at once, as often."""
    rng = random.Random(f"due {seed} {rate}")
    times: list[float] = []
    at = 0.0
    together = 1 if arrival == "poisson" else burst
    while len(times) < count:
        at += rng.expovariate(rate / together)
        times += [at] * together
    return times[:count]


def take(source: Iterable[Request], times: Sequence[float]) -> list[Request]:
    """Requests from a source, due at these times."""
    found = []
    for due, request in zip(times, source, strict=False):  # takes none too many from the source
        request.due = due
        found.append(request)
    return found


class Driver:
    """Sends requests to a front end and collects what it says."""

    def __init__(self, front: FrontEnd) -> None:
        self.front, self.texts = front, Texts()
        self._number = itertools.count(1)

    def open(self, requests: Sequence[Request], measured: bool = False) -> list[Outcome]:
        """Bring sessions into being, one by one; for a stateless front end nothing is done unless it is measured."""
        if measured or self.front.setup.kind in TIERS:
            return self.one_by_one(requests)
        for request in requests:
            self.texts.message(request, True)
        return []

    def one_by_one(self, requests: Iterable[Request]) -> list[Outcome]:
        """Each is sent when the one before is answered."""
        return [outcome for request in requests for outcome in self.open_loop([dataclasses.replace(request, due=0.0)])]

    def open_loop(self, requests: Sequence[Request]) -> list[Outcome]:
        """Each is sent when it is due, whatever has become of the others."""
        sent: dict[int, tuple[Request, float]] = {}
        replies: dict[int, tuple[Reply, float]] = {}
        done = threading.Event()
        receiver = threading.Thread(target=self._receive, args=(len(requests), replies, done), daemon=True)
        receiver.start()
        whole, connection = self.front.setup.whole, self.front.connection
        begin = time.perf_counter()
        for request in requests:
            number = next(self._number)
            operation, text = self.texts.message(request, whole)
            wait = begin + request.due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sent[number] = request, time.perf_counter() - begin - request.due
            connection.send((operation, number, request.session, text))
            if request.forget:
                connection.send(("delete", -number, request.forget, ""))
        done.set()
        receiver.join()
        outcomes = []
        for number, (request, late) in sent.items():
            reply, at = replies.get(number, (None, 0.0))
            outcomes.append(Outcome(request, at - begin - request.due if reply else None, late, reply))
        return outcomes

    def _receive(self, count: int, replies: dict[int, tuple[Reply, float]], done: threading.Event) -> None:
        """Collects answers until all are there; answers to "delete" have negative numbers."""
        quiet = time.perf_counter()
        while len(replies) < count:
            if not self.front.connection.poll(0.5):
                if done.is_set() and time.perf_counter() - quiet > PATIENCE:
                    return
                continue
            try:
                reply = self.front.connection.recv()
            except (EOFError, OSError):
                return
            quiet = time.perf_counter()
            if reply.number > 0:
                replies[reply.number] = reply, quiet


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and max in seconds, NaN where there is nothing."""
    if not values:
        return dict.fromkeys(("p50", "p90", "p99", "max"), float("nan"))
    return {**{f"p{q}": float(np.percentile(values, q)) for q in (50, 90, 99)}, "max": max(values)}


def summary(outcomes: Sequence[Outcome], seconds: float, workers: int) -> dict[str, Any]:
    """Latency by class, bytes, and what went wrong.

    `utilisation` is the work of the front end in seconds over the seconds that its workers had.
    """
    answered = [o for o in outcomes if o.reply is not None and not o.reply.error]
    replies = [o.reply for o in answered if o.reply]
    return {
        "requests": len(outcomes),
        "lost": sum(o.reply is None for o in outcomes),
        "errors": sorted({o.reply.error for o in outcomes if o.reply and o.reply.error})[:5],
        "failed": sum(bool(o.reply and o.reply.error) for o in outcomes),
        "latency": {
            kind: quantiles([o.latency for o in answered if o.request.kind == kind and o.latency is not None])
            for kind in CLASSES
        },
        "served_bytes": sum(r.served for r in replies),
        "scanned_bytes": sum(r.scanned for r in replies),
        "paths": {path: sum(r.path == path for r in replies) for path in sorted({r.path for r in replies})},
        "latest_send": max((o.late for o in outcomes), default=0.0),
        "utilisation": sum(r.seconds for r in replies) / (seconds * workers) if seconds else float("nan"),
    }
