"""What `add_special_tokens=True` puts around the ids of one text, read from the reference's post-processor."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np


class Frame(NamedTuple):
    """Ids in front of and behind the ids of a text, both int32."""

    before: np.ndarray
    after: np.ndarray

    @property
    def empty(self) -> bool:
        """Whether nothing is added."""
        return not (len(self.before) or len(self.after))

    def around(self, ids: np.ndarray) -> np.ndarray:
        """int32: the ids of one text with the special tokens."""
        return ids if self.empty else np.concatenate([self.before, ids, self.after])

    def around_rows(self, ids: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for a batch: flat ids int32[k] with row offsets int64[n + 1], before and after."""
        if self.empty:
            return ids, offsets
        rows, extra = np.arange(len(offsets), dtype=np.int64), len(self.before) + len(self.after)
        framed_offsets = offsets + rows * extra
        framed = np.empty(framed_offsets[-1], np.int32)
        kept = np.ones(len(framed), bool)
        for k, token in enumerate(self.before):
            framed[framed_offsets[:-1] + k] = token
            kept[framed_offsets[:-1] + k] = False
        for k, token in enumerate(self.after):
            at = framed_offsets[1:] - len(self.after) + k
            framed[at] = token
            kept[at] = False
        framed[kept] = ids
        return framed, framed_offsets


def frame(description: str) -> Frame | None:
    """The frame of a post-processor, given as canonical JSON; None if only the reference can tell what it does."""
    sides = _sides(json.loads(description))
    return None if sides is None else Frame(np.array(sides[0], np.int32), np.array(sides[1], np.int32))


def _sides(processor: Any) -> tuple[list[int], list[int]] | None:
    if processor is None or processor["type"] == "ByteLevel":
        return [], []
    if processor["type"] in ("BertProcessing", "RobertaProcessing"):
        return [processor["cls"][1]], [processor["sep"][1]]
    if processor["type"] == "TemplateProcessing":
        return _template(processor)
    if processor["type"] == "Sequence":
        # A template hands on one encoding a piece, and what follows works on each: we do one that adds, no more.
        adding = [p for p in processor["processors"] if p["type"] != "ByteLevel"]
        return _sides(adding[0]) if len(adding) == 1 else None if adding else ([], [])
    return None


def _template(processor: dict[str, Any]) -> tuple[list[int], list[int]] | None:
    """The single-text template: special tokens around exactly one `$A`."""
    sides: tuple[list[int], list[int]] = ([], [])
    seen = 0
    for piece in processor["single"]:
        if "Sequence" in piece:
            seen += 1
            if piece["Sequence"]["id"] != "A":
                return None
        elif (token := processor["special_tokens"].get(piece["SpecialToken"]["id"])) is not None:
            sides[seen > 0].extend(token["ids"])
        else:
            return None
    return sides if seen == 1 else None
