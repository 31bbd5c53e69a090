"""Normalizers: NFC is done locally with the reference's own tables, everything else by the reference's normalizer.

`load(spec.normalizer)` gives a `Normalizer`; it works on buffers (UTF-8, 0xFF between segments), because the reference
normalizes each stretch of text between two added tokens on its own.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from toktier.normalize import nfc

BOUNDARY = b"\xff"


class Normalizer:
    """One normalizer.  Immutable and safe from any thread.

    Attributes:
      kind: "none", "nfc" (local) or "reference" (the reference's normalizer, segment by segment).
    """

    def __init__(self, description: Any) -> None:
        steps = _flat(description)
        self.description = json.dumps(description)
        self.kind = "none" if not steps else "nfc" if all(s == {"type": "NFC"} for s in steps) else "reference"

    def unchanged(self, texts: Sequence[str]) -> bool:
        """True if the normalizer certainly changes no part of these texts, wherever they are cut.  Costs one scan."""
        if self.kind == "none":
            return True
        if self.kind == "reference":
            return False
        suspects = [text for text in texts if not text.isascii()]
        if not suspects:
            return True
        return nfc.tables().unchanged(suspects[0] if len(suspects) == 1 else "\n".join(suspects))

    def buffer(self, buffer: bytes) -> bytes:
        """The buffer with each segment normalized; the boundaries stay, in number and order."""
        if self.kind == "none":
            return buffer
        if self.kind == "nfc":
            text = buffer.decode("utf-8", "surrogateescape")
            return nfc.tables().normalized(text).encode("utf-8", "surrogateescape")
        whole = self.text
        return BOUNDARY.join([whole(s.decode()).encode() if s else s for s in buffer.split(BOUNDARY)])

    @functools.cached_property
    def text(self) -> Callable[[str], str]:
        """The reference's normalizer as a function on one segment."""
        if self.kind == "none":
            return str
        return reference_normalizer(self.description)

    def starts_apart(self, char: str) -> bool:
        """True if a text may be cut in front of this character: both sides normalize apart, whatever stands there."""
        if self.kind == "nfc":
            return nfc.tables().starts_apart(char)
        return self.kind == "none"


def load(description: str) -> Normalizer:
    """The normalizer of a spec: canonical JSON of the reference's object, or "null"."""
    return Normalizer(json.loads(description))


@functools.lru_cache(maxsize=64)
def reference_normalizer(description: str) -> Callable[[str], str]:
    """The reference's own normalizer from its JSON, as a function on str."""
    import tokenizers

    shell = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={}, merges=[]))
    parts = json.loads(shell.to_str())
    parts["normalizer"] = json.loads(description)
    made = tokenizers.Tokenizer.from_str(json.dumps(parts)).normalizer
    return made.normalize_str if made is not None else str


def _flat(description: Any) -> list[Any]:
    """The steps of a normalizer with nested sequences laid out; none for null."""
    if description is None:
        return []
    if description.get("type") == "Sequence":
        return [step for part in description["normalizers"] for step in _flat(part)]
    return [description]
