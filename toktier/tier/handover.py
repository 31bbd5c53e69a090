"""A sampled result on its way to the verifier's worker: what is kept of it, and the message made of that."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from toktier.errors import InputError

Text = str | Sequence[str]  # a text, or its parts in order
_SLICE = 1 << 16  # characters made into UTF-8 at a time: other threads get their turn in between


class Sampler:
    """Which results are looked at: each with the same probability, independent of the others.

    The choice goes by the order of calls; with a seed it is the same each time.
    """

    def __init__(self, rate: float, seed: int | None) -> None:
        self.rate = rate
        self._random = random.Random(seed).random

    def __call__(self) -> bool:
        return self._random() < self.rate


class Sample(NamedTuple):
    """A delivered result: references to what was delivered, when (monotonic seconds), and the bytes it holds."""

    tokenizer: str
    text: Text
    ids: Any
    special_tokens: Any
    add_special_tokens: bool
    request: Any
    delivered: float
    nbytes: int


class HandOverError(Exception):
    """A sample that cannot be handed to the worker: an unknown tokenizer, ids that are no integers."""


class Message:
    """What the worker is sent: `head`, and `bodies` that are made while they are written.

    Attributes:
      parts: the text's.  n_chars, n_ids: of the result.  n_bytes: UTF-8 bytes written so far.
    """

    def __init__(self, head: dict[str, Any], parts: Sequence[str], ids: np.ndarray) -> None:
        self.head, self.parts, self._ids = head, parts, ids
        self.n_chars, self.n_ids, self.n_bytes = sum(map(len, parts)), len(ids), 0

    @property
    def bodies(self) -> list[Iterator[bytes]]:
        """The text in UTF-8, and the ids."""
        return [self._utf8(), iter([self._ids.tobytes()])]

    def _utf8(self) -> Iterator[bytes]:
        waiting: list[str] = []  # short parts, put together: fewer writes
        n_waiting = 0
        for part in self.parts:
            for at in range(0, len(part), _SLICE):
                waiting.append(part[at : at + _SLICE])
                n_waiting += len(waiting[-1])
                if n_waiting >= _SLICE:
                    yield self._encoded(waiting)
                    waiting, n_waiting = [], 0
        if waiting:
            yield self._encoded(waiting)

    def _encoded(self, parts: list[str]) -> bytes:
        data = "".join(parts).encode("utf-8", "surrogatepass")
        self.n_bytes += len(data)
        return data


def message(sample: Sample, tokenizers: Mapping[str, Any]) -> Message:
    """The message for a sample.

    Raises:
      HandOverError: it makes no sense.
    """
    if sample.tokenizer not in tokenizers:
        raise HandOverError(f"tokenizer={sample.tokenizer!r} was not named in start()")
    parts = [sample.text] if isinstance(sample.text, str) else sample.text
    if not all(isinstance(part, str) for part in parts):
        raise HandOverError("the offered text is no str, and no sequence of str")
    try:
        mode = tokenizers[sample.tokenizer]._mode(sample.special_tokens)
    except InputError as e:
        raise HandOverError(str(e)) from e
    if not isinstance(mode, str):
        mode = sorted(mode)
    ids = _integers(sample.ids)
    head = {"name": sample.tokenizer, "mode": mode, "add": bool(sample.add_special_tokens), "dtype": ids.dtype.str}
    return Message(head, parts, ids)


def _integers(ids: Any) -> np.ndarray:
    try:
        array = np.ascontiguousarray(ids if len(ids) else np.zeros(0, np.int32))
    except (TypeError, ValueError) as e:
        raise HandOverError(f"the offered ids are no array of integers: {e}") from e
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise HandOverError(f"the offered ids are no row of integers but {array.dtype} of shape {array.shape}")
    return array
