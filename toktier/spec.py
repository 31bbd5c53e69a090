"""A frozen tokenizer specification: data only, no engine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import NamedTuple

import numpy as np

MAX_IDS = 1 << 20  # the device packs a pair of ids and a rank into two 32-bit words
DEFAULT_MODES = {"tokenizers": "parse", "tiktoken": "forbid"}  # what each reference does with special tokens in a text


class AddedToken(NamedTuple):
    """A literal that is reserved as one id, with the reference's matching flags."""

    id: int
    content: str
    special: bool = True
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Spec:
    """What a tokenizer is, without the means to run it.  docs/architecture.md lists the fields."""

    name: str
    reference: str
    reference_version: str
    token_blob: np.ndarray
    token_offsets: np.ndarray
    merges: np.ndarray
    merge_rule: str
    ignore_merges: bool
    pretokenizer: str
    normalizer: str
    post_processor: str
    decoder: str
    added: tuple[AddedToken, ...]
    reason: str
    special_default: str = ""
    source_digest: str = ""
    unwritten: tuple[tuple[int, str], ...] = ()
    digest: str = ""

    def __post_init__(self) -> None:
        if not self.special_default:
            object.__setattr__(self, "special_default", DEFAULT_MODES[self.reference])
        for name in ("token_blob", "token_offsets", "merges"):
            getattr(self, name).flags.writeable = False
        if not self.digest:
            object.__setattr__(self, "digest", self._content_digest())

    @property
    def n_ids(self) -> int:
        """One more than the largest id of the model (gaps count)."""
        return len(self.token_offsets) - 1

    def token_bytes(self, token: int) -> bytes:
        """Raw bytes of one model token (empty for a gap)."""
        return self.token_blob[self.token_offsets[token] : self.token_offsets[token + 1]].tobytes()

    def _content_digest(self) -> str:
        h = hashlib.sha256()
        for field in dataclasses.fields(self):
            if field.name in ("name", "digest"):
                continue
            value = getattr(self, field.name)
            h.update(field.name.encode())
            if isinstance(value, np.ndarray):
                h.update(str((value.dtype, value.shape)).encode())
                h.update(np.ascontiguousarray(value).tobytes())
            else:
                h.update(json.dumps(value, ensure_ascii=True, sort_keys=True).encode())
        return h.hexdigest()
