"""Logs of a whole machine: finds the files, tells whose they are, and reads them all into calls without text."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toktier.errors import InputError, SourceNotFoundError

from .claude import ClaudeReader, is_claude
from .codex import CodexReader, is_codex
from .records import UNREADABLE, records, seconds
from .traces import Call, read_traces

_HEAD = 50  # records that are looked at to tell whose a file is
DEFAULTS = ("~/.claude/projects", "~/.codex/sessions", "~/.codex/archived_sessions")


@dataclass
class Logs:
    """Calls, and what was counted on the way to them.

    Attributes:
      calls: of all sessions, each one's in order; no text, names are keyed hashes.
      files: number of files by source ("claude", "codex", "trace"; "other" and "unreadable" were not read).
      counts: "lines".
      skipped: what does not count as context, by reason.
      repeated: what a log says more than once, by kind.
      notes: what happened to contexts: compactions, ends taken back, clocks that went back.
    """

    calls: list[Call] = field(default_factory=list)
    files: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    @property
    def copied_calls(self) -> int:
        """Calls that one session's log has from another's: counted twice by who only adds up lines."""
        return self.repeated["calls copied from another session"]


class Names:
    """Keyed hashes: HMAC-SHA256 of a name, 16 hexadecimal digits.

    Args:
      key: secret; the same key gives the same names again.  None takes a random one that nobody keeps.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) < 16:
            raise InputError(f"key has {len(key)} bytes; 16 or more keep names from being found by trying")
        self._key = key if key is not None else secrets.token_bytes(32)
        self._used: dict[str, str] = {}

    def __call__(self, name: str, place: str = "") -> str:
        """The hash of `name`; of `place` too where another place has the same name."""
        made = self._hash(name)
        if self._used.setdefault(made, place) != place:
            made = self._hash(f"{name}\0{place}")
            self._used.setdefault(made, place)
        return made

    def _hash(self, value: str) -> str:
        return hmac.new(self._key, value.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:16]


def read_logs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    key: bytes | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Logs:
    """Read logs of Claude Code and Codex CLI, and traces.

    Texts are measured and let go; nothing of them, no path and no name is in the result.

    Args:
      paths: files, or folders that are searched for `.jsonl` files.
      key: of the hashes that sessions are named by; see `Names`.
      progress: called with (files done, files in all).

    Raises:
      SourceNotFoundError: a path that does not exist, or no log in any of them.
      InputError: a trace file with a line that is no call.
    """
    found = _find(paths)
    logs, names = Logs(), Names(key)

    def name(file: Path, chain: str) -> str:
        return names(f"{file.stem}\0{chain}", str(file.resolve()))

    parts = logs.counts, logs.skipped, logs.repeated, logs.notes
    claude, codex = ClaudeReader(name, *parts), CodexReader(name, *parts)
    heads = sorted((_head(file) for file in found), key=lambda head: head[:2])
    for done, (_, _, file, kind) in enumerate(heads):
        logs.files[kind] += 1
        if kind == "trace":
            before = len(logs.calls)
            logs.calls += _trace(file, names)
            logs.counts["lines"] += len(logs.calls) - before
        elif kind in ("claude", "codex"):
            for conversation in (claude if kind == "claude" else codex).read(file):
                logs.calls += conversation.calls
        if progress is not None:
            progress(done + 1, len(heads))
    if set(logs.files) <= {"other", "unreadable"}:
        raise SourceNotFoundError(_no_log(paths, len(found), logs.files["unreadable"]))
    return logs


def _find(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    found: dict[Path, Path] = {}
    for given in paths:
        path = Path(given).expanduser()
        if not path.exists():
            raise SourceNotFoundError(f"{given}: no such file or folder; logs are usually below {DEFAULTS[0]}")
        for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]:
            if file.is_file():
                found.setdefault(file.resolve(), file)  # a link to a file already there is that file
    return list(found.values())


def _no_log(paths: Sequence[str | os.PathLike[str]], looked_at: int, unreadable: int) -> str:
    """What is said where no file is a log: each was named, or found in a folder by its suffix."""
    folders = [Path(p).expanduser().is_dir() for p in paths]
    kinds, many = "log of Claude Code or Codex CLI and no trace", "" if looked_at == 1 else "s"
    if not looked_at:
        said = "no file to read there (in folders, those that end in .jsonl)"
    elif not any(folders):
        said = f"is no {kinds}" if looked_at == 1 else f"no {kinds} among these {looked_at} files"
    else:
        said = f"no {kinds} among {looked_at}{' .jsonl' if all(folders) else ''} file{many}"
    if unreadable:
        said += f", {unreadable} of which cannot be read: check the permissions"
    return f"{', '.join(map(str, paths))}: {said}; logs are .jsonl files, usually below {' and '.join(DEFAULTS[:2])}"


def _head(file: Path) -> tuple[float, str, Path, str]:
    """When a log begins, its name, the file, and whose it is."""
    kind, begin = "other", None
    skipped: Counter[str] = Counter()
    for number, record in enumerate(records(file, Counter(), skipped)):
        if kind == "other":
            if {"session", "call"} <= set(record):
                kind = "trace"
            elif is_codex(record):
                kind = "codex"
            elif is_claude(record):
                kind = "claude"
        begin = begin if begin is not None else seconds(record.get("timestamp"))
        if (kind != "other" and begin is not None) or number >= _HEAD:
            break
    if skipped[UNREADABLE]:
        kind = "unreadable"
    return begin if begin is not None else float("inf"), file.name, file, kind


def _trace(file: Path, names: Names) -> Iterator[Call]:
    for call in read_traces(file):
        call.session, call.append = names(call.session, str(file)), None
        yield call
