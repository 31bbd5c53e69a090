"""The journal of a campaign: one JSON line for what it is about, one for every batch that is done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from toktier.errors import InputError


class Journal:
    """Appends results as they come; with `resume`, knows those of an earlier run.

    Args:
      path: the file, None for no journal at all.
      head: what results depend on (digests of tokenizer and files, engines, seed); a journal of something else is
        refused.
      resume: go on with an existing journal; else it is begun anew.

    Raises:
      InputError: the journal is of another campaign, or no journal.
    """

    def __init__(self, path: str | os.PathLike[str] | None, head: dict[str, Any], resume: bool) -> None:
        self.done: dict[int, dict[str, Any]] = {}
        self._handle = None
        if path is None:
            return
        file = Path(path)
        if resume and file.exists():
            self._read(file, head)
            self._handle = file.open("a", encoding="utf-8")
        else:
            self._handle = file.open("w", encoding="utf-8")
            self._write(head)

    def _read(self, file: Path, head: dict[str, Any]) -> None:
        raw = file.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]  # a run that was killed may have left half a line
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            results = {line["batch"]: line for line in lines[1:]}
        except (ValueError, KeyError, TypeError) as e:
            raise InputError(
                f"{file}: is no journal of `toktier verify` ({e}); leave --resume out to begin anew"
            ) from e
        known = lines[0] if lines else head
        if known != json.loads(json.dumps(head)):
            moved = sorted(k for k in {*head, *known} if known.get(k) != json.loads(json.dumps(head)).get(k))
            raise InputError(
                f"{file}: is the journal of another campaign (other {', '.join(moved)}); leave --resume out to begin "
                "anew, or name another --journal"
            )
        if len(whole) < len(raw) or not lines:
            file.write_bytes(whole or (json.dumps(head) + "\n").encode())
        self.done = results

    def add(self, result: dict[str, Any]) -> None:
        """Keep the result of one batch."""
        self.done[result["batch"]] = result
        if self._handle is not None:
            self._write(result)

    def _write(self, line: dict[str, Any]) -> None:
        assert self._handle is not None
        self._handle.write(json.dumps(line, ensure_ascii=True) + "\n")
        self._handle.flush()

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None
