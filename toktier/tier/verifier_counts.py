"""What a verifier counts."""

from __future__ import annotations

import collections
import copy
from typing import Any

import numpy as np

_RECENT = 1024  # delays that the quantiles are made of
_NAMES = (
    "offered",
    "sampled",
    "checked",
    "mismatched",
    "dropped",
    "dropped_queue",
    "dropped_bytes",
    "dropped_closed",
    "errors",
    "restarts",
    "alarms",
    "alarm_errors",
    "keep_errors",
    "unsteady",
    "checked_bytes",
)


class VerifierCounts:
    """Counts since the start; not safe from several threads by itself.

    offered, sampled; checked, of these mismatched; dropped = dropped_queue (no place) + dropped_bytes (no memory) +
    dropped_closed; errors: results of which nothing can be said, since the worker ended or hung over them, or the
    reference itself fails; restarts of the worker; alarms and alarm_errors; keep_errors: failing inputs that could not
    be kept; unsteady: the reference gave other ids when made afresh, which then count; checked_bytes: UTF-8 encoded
    again; worker_seconds: CPU of that; delay: seconds from delivery to verdict, mean and max of all, p50 and p99 of the
    last 1,024; by_tokenizer; last_error: the last reason of an error or restart.
    """

    def __init__(self) -> None:
        self.last_error = ""
        self._counts: collections.Counter[str] = collections.Counter()
        self._own: dict[str, collections.Counter[str]] = {}
        self._delays: collections.deque[float] = collections.deque(maxlen=_RECENT)
        self._delay_sum = self._delay_max = self._seconds = 0.0

    def add(self, *names: str, tokenizer: str | None = None) -> None:
        """One more of each, also for one tokenizer."""
        for name in names:
            self._counts[name] += 1
        if tokenizer is not None:
            own = self._own.setdefault(tokenizer, collections.Counter())
            for name in names:
                own[name] += 1

    def verdict(self, delay: float, seconds: float, n_bytes: int, unsteady: bool) -> None:
        """What a verdict cost."""
        self._delays.append(delay)
        self._delay_sum += delay
        self._delay_max = max(self._delay_max, delay)
        self._seconds += seconds
        self._counts["checked_bytes"] += n_bytes
        self._counts["unsteady"] += unsteady

    def copy(self) -> VerifierCounts:
        """A copy that stays as it is."""
        other = copy.copy(self)
        other._counts, other._delays = self._counts.copy(), self._delays.copy()
        other._own = {name: own.copy() for name, own in self._own.items()}
        return other

    def described(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        recent = np.array(self._delays or [0.0])
        checked = self._counts["checked"]
        return {
            **{name: self._counts[name] for name in _NAMES},
            "worker_seconds": self._seconds,
            "delay": {
                "mean": self._delay_sum / checked if checked else 0.0,
                "max": self._delay_max,
                "p50": float(np.quantile(recent, 0.5)),
                "p99": float(np.quantile(recent, 0.99)),
            },
            "by_tokenizer": {name: dict(own) for name, own in self._own.items()},
            "last_error": self.last_error,
        }
