"""The trace format: one JSON line a call, with the text that the call appends or with nothing but its length.

    {"session": "a", "call": 0, "append": "<|im_start|>system ...", "gen_chars": 0}
    {"session": "5f0c", "call": 1, "append_chars": 1400, "gen_chars": 320, "context_chars": 61400, "pause": 4.2,
     "turn": 0, "event": "continue"}

Text traces are for replay; traces of counts are what may leave a machine.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toktier.errors import InputError, SourceNotFoundError
from toktier.npy import complete_file

EVENTS = ("start", "continue", "edit", "compact")


@dataclass(slots=True)
class Call:
    """One call of a model: what its context has that the context of the session's last call had not.

    Attributes:
      session: a name; in an export a keyed hash.
      call: 0, 1, 2 ... within the session.
      append_chars: characters behind the part of the old context that stayed.
      context_chars: characters of the whole context, these included.
      append: the text itself, None in a trace of counts.
      gen_chars: how many of the appended characters, from their first on, the model wrote in the call before.
      keep_chars: characters of the old context that stayed; all of them in a "continue".
      pause: seconds since the session's last call came in; None where unknown, as in a session's first.
      turn: number of the user's turn that the call is part of.
      event: "start" of a session, "continue", "edit" (the end of the old context was taken back), "compact" (a summary
        took the place of the old context).
      context_tokens, cached_tokens: input tokens, and those of them from the provider's cache, where a log says so.
      source: "claude", "codex", "generated" or "".
    """

    session: str
    call: int
    append_chars: int
    context_chars: int
    append: str | None = None
    gen_chars: int = 0
    keep_chars: int = 0
    pause: float | None = None
    turn: int = 0
    event: str = "continue"
    context_tokens: int | None = None
    cached_tokens: int | None = None
    source: str = ""

    @property
    def whole(self) -> bool:
        """Does the call bring a whole context (start or compaction), so that no session can help?"""
        return self.event in ("start", "compact")


def read_traces(path: str | os.PathLike[str]) -> Iterator[Call]:
    """The calls of a trace file, or of all `.jsonl` files of a folder in order of their names.

    Raises:
      SourceNotFoundError: no such path, or a folder without `.jsonl` files.
      InputError: a line that is no call, or a call that is missing; with file and line.
    """
    root = Path(path)
    if not root.exists():
        raise SourceNotFoundError(f"{root}: no such file or folder of traces")
    files = sorted(root.glob("*.jsonl")) if root.is_dir() else [root]
    if not files:
        raise SourceNotFoundError(f"{root}: holds no .jsonl file; name a trace file or a folder of them")
    last: dict[str, Call] = {}
    for file in files:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _call(line, f"{file}:{number}", last)


def _call(line: bytes, where: str, last: dict[str, Call]) -> Call:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as e:  # UnicodeDecodeError is a ValueError
        raise InputError(f"{where}: is not JSON ({e}); a trace has one JSON object a line") from e
    if not isinstance(record, dict):
        raise InputError(f"{where}: is a {type(record).__name__}, not an object; a trace has one JSON object a line")
    session, number, text = record.get("session"), _count(record, "call", where), record.get("append")
    if not isinstance(session, str) or not session:
        raise InputError(f"{where}: session={session!r} must be a name, a string that is not empty")
    if text is not None and not isinstance(text, str):
        raise InputError(f"{where}: append is a {type(text).__name__}; give the text, or its length as append_chars")
    if text is None and "append_chars" not in record:
        raise InputError(f"{where}: has neither append (text) nor append_chars (its length); a call needs one of them")
    before = last.get(session)
    expected = before.call + 1 if before else 0
    if number != expected:
        raise InputError(f"{where}: call={number} of session {session!r}, but call {expected} is missing before it")
    appended = len(text) if text is not None else _count(record, "append_chars", where)
    if text is not None and record.get("append_chars", appended) != appended:
        raise InputError(f"{where}: append_chars={record['append_chars']!r}, but append has {appended} characters")
    event = record.get("event", "continue" if before else "start")
    if event not in EVENTS:
        raise InputError(f"{where}: event={event!r} is not known: use one of {', '.join(EVENTS)}")
    old = before.context_chars if before else 0
    keep = _count(record, "keep_chars", where, 0 if event in ("start", "compact") else old)
    if keep > old:
        raise InputError(f"{where}: keep_chars={keep}, but the context before has {old} characters")
    generated = _count(record, "gen_chars", where, 0)
    if generated > appended:
        raise InputError(f"{where}: gen_chars={generated} is more than the {appended} characters appended")
    context = _count(record, "context_chars", where, keep + appended)
    if context != keep + appended:
        raise InputError(f"{where}: context_chars={context}, but {keep} kept and {appended} appended make another sum")
    pause = record.get("pause")
    if pause is not None and not (
        isinstance(pause, int | float) and not isinstance(pause, bool) and math.isfinite(pause) and pause >= 0
    ):
        raise InputError(f"{where}: pause={pause!r} must be a number of seconds, 0 or more, or null")
    call = Call(
        session,
        number,
        appended,
        context,
        append=text,
        gen_chars=generated,
        keep_chars=keep,
        pause=pause,
        turn=_count(record, "turn", where, 0),
        event=event,
        source=str(record.get("source", "")),
    )
    for name in _TOKENS:
        if record.get(name) is not None:
            setattr(call, name, _count(record, name, where))
    last[session] = call
    return call


_TOKENS = ("context_tokens", "cached_tokens")


def _count(record: dict[str, Any], name: str, where: str, default: int | None = None) -> int:
    value = record.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{where}: {name}={value!r} must be a count, 0 or more")
    return value


def record_of(call: Call, text: bool) -> dict[str, Any]:
    """The JSON object of a call; without `text` only counts, the keyed name and the kind of event are in it."""
    record: dict[str, Any] = {"session": call.session, "call": call.call}
    if text and call.append is not None:
        record["append"] = call.append
    else:
        record["append_chars"] = call.append_chars
    record |= {
        "gen_chars": call.gen_chars,
        "keep_chars": call.keep_chars,
        "context_chars": call.context_chars,
        "pause": None if call.pause is None else round(call.pause, 3),
        "turn": call.turn,
        "event": call.event,
    }
    for name in _TOKENS:
        if getattr(call, name) is not None:
            record[name] = getattr(call, name)
    if call.source:
        record["source"] = call.source
    return record


def write_traces(path: str | os.PathLike[str], calls: Iterable[Call], *, text: bool = False) -> int:
    """Write calls as a trace file, which appears only when it is complete; returns how many there were.

    Args:
      text: keep the text of calls that have it.  Without it the file holds counts only.
    """
    written = 0
    with complete_file(str(path)) as handle:
        for call in calls:
            handle.write(json.dumps(record_of(call, text), ensure_ascii=True).encode() + b"\n")
            written += 1
    return written
