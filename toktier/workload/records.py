"""Lines of a log as JSON objects.  What cannot be read is counted by a reason from a fixed list, never shown."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

BROKEN, CUT_OFF, NO_OBJECT, BAD_UTF8, UNREADABLE = (
    "lines that are not JSON",
    "last line cut off",
    "lines that are not an object",
    "lines with bytes that are not UTF-8",
    "files that cannot be read",
)


class LogReader:
    """What readers of logs share: how sessions are named, and what is counted.

    Args:
      name: makes a session's public name from the file and the chain in it ("" for the main one).
      counts, skipped, repeated, notes: are counted into.
    """

    def __init__(
        self,
        name: Callable[[Path, str], str],
        counts: Counter[str],
        skipped: Counter[str],
        repeated: Counter[str],
        notes: Counter[str],
    ) -> None:
        self._name = name
        self.counts, self.skipped, self.repeated, self.notes = counts, skipped, repeated, notes


def records(file: Path, counts: Counter[str], skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, line by line; `counts["lines"]` and `skipped` are kept up to date.

    Bytes that are not UTF-8 become U+FFFD, one character each, and the line is used all the same.
    """
    try:
        with file.open("rb") as lines:
            for line in lines:
                if not line.strip():
                    continue
                counts["lines"] += 1
                try:
                    text = line.decode()
                except UnicodeDecodeError:
                    skipped[BAD_UTF8] += 1
                    text = line.decode("utf-8", "replace")
                try:
                    record = json.loads(text)
                except (ValueError, RecursionError):
                    skipped[BROKEN if line.endswith(b"\n") else CUT_OFF] += 1
                    continue
                if isinstance(record, dict):
                    yield record
                else:
                    skipped[NO_OBJECT] += 1
    except OSError:
        skipped[UNREADABLE] += 1


def seconds(value: object) -> float | None:
    """An ISO 8601 time as seconds since 1970; None where it is none."""
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def field(record: Any, *names: str) -> Any:
    """record[a][b]...; None where something on the way is missing or no object."""
    for name in names:
        if not isinstance(record, dict):
            return None
        record = record.get(name)
    return record


def text(record: Any, *names: str) -> str:
    """As `field`, "" for anything but a string."""
    value = field(record, *names)
    return value if isinstance(value, str) else ""


def count(record: Any, *names: str) -> int:
    """As `field`, 0 for anything but a count."""
    value = field(record, *names)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def written(value: Any) -> str:
    """A JSON value as a prompt has it: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def digest(*parts: Any) -> bytes:
    """16 bytes that stand for a value while a log is read; they are kept nowhere."""
    raw = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(raw.encode(), digest_size=16).digest()
