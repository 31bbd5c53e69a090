"""What a tier counts."""

from __future__ import annotations

import collections
import threading
from typing import Any

from .answer import PATHS


class Counts:
    """Numbers since the start; one lock, held for an addition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths = {path: [0, 0, 0] for path in PATHS}  # requests, served, scanned bytes
        self._launches = self._launched = self._largest = 0
        self._groups: dict[str, collections.Counter[str]] = {
            name: collections.Counter() for name in ("spills", "errors", "events")
        }

    def answered(self, path: str, served: int, scanned: int) -> None:
        """A request was answered."""
        with self._lock:
            entry = self._paths[path]
            entry[0] += 1
            entry[1] += served
            entry[2] += scanned

    def launched(self, requests: int) -> None:
        """The device program ran for so many requests at once."""
        with self._lock:
            self._launches += 1
            self._launched += requests
            self._largest = max(self._largest, requests)

    def add(self, group: str, name: str, count: int = 1) -> None:
        """Something happened: spills by why, errors by type, other events."""
        with self._lock:
            self._groups[group][name] += count

    def snapshot(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        with self._lock:
            names = ("requests", "served_bytes", "scanned_bytes")
            return {
                "paths": {path: dict(zip(names, entry, strict=True)) for path, entry in self._paths.items()},
                "batches": {"launches": self._launches, "requests": self._launched, "largest": self._largest},
                "spills": dict(self._groups["spills"]),
                "errors": dict(self._groups["errors"]),
                "late": self._groups["errors"]["DeadlineError"],
                **{name: self._groups["events"][name] for name in ("cancelled", "rejected")},
            }
