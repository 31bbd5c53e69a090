"""What is kept of a wrong result: a mismatch as it is found, and the smallest input that shows one."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

KEEP = ("text", "hash")


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """One delivered result that is not what the reference gives.  Its repr shows no text.

    Attributes:
      tokenizer, fingerprint: whose ids; `Tokenizer.fingerprint`.
      request: what the caller of `offer` named it.
      position: index of the first id that differs (the length of the shorter side where it begins the longer one).
      n_chars, n_want, n_got: characters of the text, ids of the reference, ids delivered.
      digest: of the text, HMAC-SHA256 with the verifier's key (hex).
      delay: seconds from delivery to this verdict.
      error: why the reference refuses the text, where it does; then `want` is empty and the position 0.
      first, want, got: a few ids of both sides, from index `first` on; empty with keep="hash".
      text: the text; None with keep="hash".
    """

    tokenizer: str
    fingerprint: str
    request: Any
    position: int
    n_chars: int
    n_want: int
    n_got: int
    digest: str
    delay: float
    error: str = ""
    first: int = 0
    want: tuple[int, ...] = ()
    got: tuple[int, ...] = ()
    text: str | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class FailingInput:
    """The smallest input of a tokenizer that showed a mismatch.

    Attributes:
      tokenizer, fingerprint, special_tokens, add_special_tokens: whose ids, and how they were made.
      reproduced: encoding the text again, in a fresh process, gives wrong ids again: a fault of the engine.  Otherwise
        only what was delivered is wrong, and the text is the part of the request around the difference.
      n_chars, n_want, n_got, digest: as in `Mismatch`, of this text.
      request_digest: digest of the whole text.
      text, want, got: the text, the reference's ids and the wrong ones; None with keep="hash".
    """

    tokenizer: str
    fingerprint: str
    special_tokens: Any
    add_special_tokens: bool
    reproduced: bool
    n_chars: int
    n_want: int
    n_got: int
    digest: str
    request_digest: str
    text: str | None = dataclasses.field(repr=False)
    want: tuple[int, ...] | None = dataclasses.field(repr=False)
    got: tuple[int, ...] | None = dataclasses.field(repr=False)


class Keeper:
    """Keeps the smallest failing input of each tokenizer, in memory and in a directory if there is one.

    Args:
      keep: "text", or "hash" for digests and lengths alone: neither text nor ids, which are the text.
      directory: where each is written as JSON, readable by its owner only; None for nowhere.
      key: of the digests; a random one if None, so that digests of two verifiers say nothing about each other.
    """

    def __init__(self, keep: str, directory: str | os.PathLike[str] | None, key: bytes | None) -> None:
        self.keep = keep
        self.directory = None if directory is None else Path(directory)
        self._key = os.urandom(32) if key is None else key
        self.smallest: dict[str, FailingInput] = {}

    def digest(self, text: str) -> str:
        """HMAC-SHA256 of the text's UTF-8, in hex."""
        return hmac.new(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def offer(self, found: FailingInput) -> bool:
        """Keep it if it is smaller than what is kept of this tokenizer.

        Raises:
          OSError: the directory cannot be written.
        """
        known = self.smallest.get(found.tokenizer)
        if known is not None and (not known.reproduced, known.n_chars) <= (not found.reproduced, found.n_chars):
            return False
        if self.keep == "hash":
            found = dataclasses.replace(found, text=None, want=None, got=None)
        self.smallest[found.tokenizer] = found
        if self.directory is not None:
            self._write(found)
        return True

    def _write(self, found: FailingInput) -> None:
        assert self.directory is not None
        self.directory.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9._-]", "_", found.tokenizer)[:80].lstrip(".")
        fields = dataclasses.asdict(found)
        if not isinstance(found.special_tokens, str | None):
            fields["special_tokens"] = sorted(found.special_tokens)
        # ASCII only: the text may hold half a surrogate pair.  mkstemp gives a file that others cannot read.
        handle, part = tempfile.mkstemp(prefix=".", dir=self.directory)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            json.dump(fields, file, indent=1)
        os.replace(part, self.directory / f"{name}-{found.fingerprint[:8]}.json")
