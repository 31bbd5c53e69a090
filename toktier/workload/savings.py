"""What a session tier would save: characters that a stateless front end tokenizes against those that a tier scans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .traces import Call

TTLS = (300.0, 3600.0, 86400.0)


@dataclass(frozen=True)
class Savings:
    """Counts and quantiles over all calls; `as_dict` is what `toktier logs --json` prints.

    Attributes:
      calls, sessions, turns: how many.
      events: calls by event (`Call.event`).
      append, context: characters, {"p50", "p90", "p99", "max"}; `append` is over calls that continue a context.
      context_tokens: input tokens as the provider counted them, where the log says so.
      cached_share: of those tokens, the share read from the provider's cache; NaN where the log does not say it.
      loop: calls a turn of the user.
      pause: seconds between the calls of a session; `turn_pause` those before a turn of the user.
      stateless_chars: characters of all contexts: what is tokenized where each call is tokenized as a whole.
      scanned_chars: by time to live (seconds; infinity for sessions that are never forgotten): characters that a tier
        tokenizes, which are whole contexts on a miss and appends on a hit.
      hit_rate: by time to live: share of calls whose session's state could be used.
      unknown_pauses: calls whose pause is not known; they count as hits.
    """

    calls: int
    sessions: int
    turns: int
    events: dict[str, int]
    append: dict[str, float]
    context: dict[str, float]
    context_tokens: dict[str, float]
    cached_share: float
    loop: dict[str, float]
    pause: dict[str, float]
    turn_pause: dict[str, float]
    stateless_chars: int
    scanned_chars: dict[float, int]
    hit_rate: dict[float, float]
    unknown_pauses: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON: NaN becomes null, a time to live without end "none"."""
        return _plain(asdict(self))

    def factor(self, ttl: float = 3600.0) -> float:
        """How many times fewer characters the tier tokenizes."""
        return self.stateless_chars / max(self.scanned_chars[ttl], 1)


def savings(calls: Iterable[Call], ttls: Sequence[float] = TTLS) -> Savings:
    """Adds up calls; sessions that were read twice would count twice.

    >>> from toktier.workload import Call, savings
    >>> day = [Call("a", 0, 9000, 9000, event="start"), Call("a", 1, 1000, 10000, keep_chars=9000, pause=400.0)]
    >>> found = savings(day)
    >>> found.stateless_chars, found.scanned_chars[300.0], found.scanned_chars[3600.0]
    (19000, 19000, 10000)
    """
    limits = [*ttls, math.inf]
    events: Counter[str] = Counter()
    loops: Counter[tuple[str, int]] = Counter()
    sessions: set[str] = set()
    appends, contexts, tokens, pauses, turns = [], [], [], [], []
    scanned, hits = dict.fromkeys(limits, 0), dict.fromkeys(limits, 0)
    cached = total = stateless = unknown = 0
    last: tuple[str, int] | None = None
    for call in calls:
        events[call.event] += 1
        loops[call.session, call.turn] += 1
        sessions.add(call.session)
        stateless += call.context_chars
        contexts.append(call.context_chars)
        if not call.whole:
            appends.append(call.append_chars)
        if call.context_tokens:
            tokens.append(call.context_tokens)
            if call.cached_tokens is not None:
                total += call.context_tokens
                cached += call.cached_tokens
        if call.pause is not None:
            pauses.append(call.pause)
            if last == (call.session, call.turn - 1):
                turns.append(call.pause)
        elif not call.whole:
            unknown += 1
        last = call.session, call.turn
        for ttl in limits:
            hit = not call.whole and (call.pause is None or call.pause <= ttl)
            hits[ttl] += hit
            scanned[ttl] += call.append_chars if hit else call.context_chars
    count = sum(events.values())
    return Savings(
        count,
        len(sessions),
        len(loops),
        dict(events),
        quantiles(appends),
        quantiles(contexts),
        quantiles(tokens),
        cached / total if total else math.nan,
        quantiles(list(loops.values())),
        quantiles(pauses),
        quantiles(turns),
        stateless,
        scanned,
        {ttl: hits[ttl] / count if count else math.nan for ttl in limits},
        unknown,
    )


def quantiles(values: Sequence[float], at: Sequence[int] = (50, 90, 99)) -> dict[str, float]:
    """p50, p90, p99 (nearest rank: a value that occurred) and max; NaN where there is nothing."""
    ordered = sorted(values)
    found = {
        f"p{p}": float(ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)]) if ordered else math.nan for p in at
    }
    return {**found, "max": float(ordered[-1]) if ordered else math.nan}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(k): _plain(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _key(key: Any) -> Any:
    if not isinstance(key, float):
        return key
    return "none" if key == math.inf else f"{key:g}"
