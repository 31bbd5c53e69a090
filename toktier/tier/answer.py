"""What a tier returns: ids, and how they came about."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..session import Patch

PATHS = ("session", "device", "host", "reference")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The ids of one request.

    Attributes:
      ids: int32[n], read-only; for a session those of its whole text.  They stay as they are whatever happens to the
        session.  Of a session they are a view: its next change costs one copy of them (4 bytes a token) if it is alive.
      path: what did the work: "session" (a repair on the CPU), "device" (the XLA program), "host" (NumPy) or
        "reference" (`tokenizers`, `tiktoken`).
      reason: why this path, in words.
      served_bytes: UTF-8 bytes of the (normalized) text that the ids stand for, a session's whole text.
      scanned_bytes: UTF-8 bytes of the text that was tokenized for this answer.
      patch: with a session, how its ids changed.
      tokenizer, session: names.
      batch: requests that shared the launch; 1 without one.
      queued: seconds of `seconds` spent waiting for a worker, for the session or for the launch.
      seconds: from the call to the answer.
    """

    ids: np.ndarray
    path: str
    reason: str
    served_bytes: int
    scanned_bytes: int
    patch: Patch | None
    tokenizer: str
    session: str | None
    batch: int
    queued: float
    seconds: float
