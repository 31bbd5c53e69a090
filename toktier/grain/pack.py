"""Documents of any length to rows of one length, for a Grain pipeline, with a state that resumes at the exact token."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from toktier.errors import InputError, InputTypeError

REMAINDERS = ("pad", "drop")


class Pack(grain.IterDataset):
    """Concatenates documents and splits them into rows of `length` tokens; no token is lost or doubled.

    Elements of `parent` are what `Tokenize` or `TokenizeBatch` give: int[k], one document; `{"ids": int[k]}`, the same;
    or `{"ids": int[k], "offsets": int[n + 1]}`, n documents.  The rows are `{"ids", "segment_ids", "positions"}`, each
    int32[length], as `toktier.jax.pack` makes them:

    * `segment_ids`: 1 for the first document in the row, 2 for the next, ...; 0 where there is padding;
    * `positions`: 0, 1, 2, ... from the beginning of each document's part in this row.

    Fields named in `also` (a loss mask, say) hold one number a token and go to the places of the tokens; BOS, EOS and
    padding get 0 there.  All other fields are left out.

    `Pack(...).batch(b)` gives int32[b, length].  An iterator's state holds the parent's state in front of the element
    in which the next row begins, and how many of its tokens are gone: no tokens, so it is small, and it may go through
    JSON.

    Args:
      parent: an IterDataset.
      length: tokens of a row.
      bos, eos: ids put in front of and behind every document that has tokens; None for nothing.
      pad: the id of padding, which only the last row has.
      remainder: "pad" fills the last row, "drop" leaves it out when it is not full.
      field: the field with the ids.
      also: fields to pack beside them.

    Raises:
      InputError, InputTypeError: an argument, or while it runs an element, that is none of these.
    """

    def __init__(
        self,
        parent: grain.IterDataset,
        length: int,
        *,
        bos: int | None = None,
        eos: int | None = None,
        pad: int = 0,
        remainder: str = "pad",
        field: str = "ids",
        also: Sequence[str] = (),
    ) -> None:
        if not isinstance(parent, grain.IterDataset):
            hint = "; call .to_iter_dataset() on it" if isinstance(parent, grain.MapDataset) else ""
            raise InputTypeError(f"parent must be a grain.IterDataset, not {type(parent).__name__}{hint}")
        if _integer("length", length) < 1:
            raise InputError(f"length={length} is no length of a row; it is the number of tokens of one")
        if remainder not in REMAINDERS:
            raise InputError(f"remainder={remainder!r} is not known; use one of {', '.join(REMAINDERS)}")
        if isinstance(also, str) or not {"ids", "segment_ids", "positions", "offsets", field}.isdisjoint(also):
            raise InputError(f"also={also!r} must be a sequence of fields beside those of the ids and the rows")
        super().__init__(parent)
        self._layout = _Layout(
            int(length),
            () if bos is None else (_id("bos", bos),),
            () if eos is None else (_id("eos", eos),),
            _id("pad", pad),
            remainder == "pad",
            field,
            tuple(also),
        )

    def __str__(self) -> str:
        return f"Pack(length={self._layout.length})"

    def __iter__(self) -> grain.DatasetIterator:
        return _PackIterator(iter(self._parent), self._layout)


class _Layout(NamedTuple):
    """The checked arguments of `Pack`."""

    length: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    pad: int
    fill_last: bool
    field: str
    also: tuple[str, ...]


class _Part(NamedTuple):
    """One element of the parent with what goes around its documents.

    state: of the parent, before it.  ids: int32[k].  starts: bool[k], a document starts.  also: name to [k].
    """

    state: Any
    ids: np.ndarray
    starts: np.ndarray
    also: dict[str, np.ndarray]


class _PackIterator(grain.DatasetIterator):
    """Keeps the elements that the next row begins in; `_gone` tokens of the first of them are in rows given before."""

    def __init__(self, parent: grain.DatasetIterator, layout: _Layout) -> None:
        super().__init__(parent)
        self._layout = layout
        self._parts: collections.deque[_Part] = collections.deque()
        self._gone = 0
        self._waiting = 0  # tokens of `_parts` that are in no row yet

    def __next__(self) -> dict[str, np.ndarray]:
        self._assert_not_closed()
        length = self._layout.length
        while self._waiting < length:
            if not self._pull():
                break
        with self._stats.record_self_time():
            if not self._waiting or (self._waiting < length and not self._layout.fill_last):
                raise StopIteration
            return self._stats.record_output_spec(self._row(min(length, self._waiting)))

    def get_state(self) -> dict[str, Any]:
        state = self._parts[0].state if self._parts else self._parent.get_state()
        return {"parent": state, "gone": self._gone}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state["parent"])
        self._parts.clear()
        self._waiting = self._gone = 0
        gone = int(state["gone"])
        if not gone:
            return
        if not self._pull() or len(self._parts[0].ids) <= gone:
            there = len(self._parts[0].ids) if self._parts else 0
            raise InputError(
                f"the state says that {gone} tokens of an element are gone, but the element has {there}: "
                "the data, the tokenizer or bos and eos are others than those of the checkpoint"
            )
        self._gone = gone
        self._waiting -= gone

    def __str__(self) -> str:
        return f"PackIterator(length={self._layout.length})"

    def _pull(self) -> bool:
        """Takes the next element of the parent that has tokens; False at its end."""
        while True:
            state = self._parent.get_state()
            try:
                element = next(self._parent)
            except StopIteration:
                return False
            part = _framed(state, element, self._layout)
            if len(part.ids):
                self._parts.append(part)
                self._waiting += len(part.ids)
                return True

    def _row(self, size: int) -> dict[str, np.ndarray]:
        """The next `size` tokens as a row."""
        length, gone = self._layout.length, self._gone
        taken: list[_Part] = []
        at = 0
        while at < size:
            part = self._parts[0]
            stop = min(gone + size - at, len(part.ids))
            also = {name: values[gone:stop] for name, values in part.also.items()}
            taken.append(_Part(None, part.ids[gone:stop], part.starts[gone:stop], also))
            at += stop - gone
            gone = stop
            if gone == len(part.ids):
                self._parts.popleft()
                gone = 0
        self._gone = gone
        self._waiting -= size

        def row(pieces: list[np.ndarray], fill: int) -> np.ndarray:
            return np.concatenate([*pieces, np.full(length - size, fill, pieces[0].dtype)])

        starts = row([part.starts for part in taken], 0)
        starts[0] = True
        places = np.arange(length, dtype=np.int32)
        segments = np.cumsum(starts, dtype=np.int32)
        positions = places - np.maximum.accumulate(np.where(starts, places, 0))
        segments[size:] = positions[size:] = 0
        ids = row([part.ids for part in taken], self._layout.pad)
        also = {name: row([part.also[name] for part in taken], 0) for name in self._layout.also}
        return {"ids": ids, "segment_ids": segments, "positions": positions, **also}


def _documents(element: Any, field: str) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32[k], offsets int64[n + 1]) of an element of the parent."""
    ids, offsets = element, None
    if isinstance(element, Mapping):
        if field not in element:
            raise InputError(f"the element has no field {field!r}; it has {', '.join(map(repr, element))}")
        ids, offsets = element[field], element.get("offsets")
    ids = _checked_ids(ids)
    if offsets is None:
        return ids, np.array([0, len(ids)], np.int64)
    offsets = np.asarray(offsets)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise InputTypeError(f"offsets must be integers in one dimension, not {offsets.dtype} {offsets.shape}")
    offsets = offsets.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != len(ids) or (np.diff(offsets) < 0).any():
        raise InputError(f"offsets must rise from 0 to the number of ids, {len(ids)}")
    return ids, offsets


def _framed(state: Any, element: Any, layout: _Layout) -> _Part:
    """The tokens of an element's documents, with what goes around each."""
    ids, offsets = _documents(element, layout.field)
    before, after = len(layout.before), len(layout.after)
    lengths = np.diff(offsets)
    lengths = lengths[lengths > 0] + before + after
    ends = np.cumsum(lengths)
    begins = ends - lengths
    total = int(ends[-1]) if len(ends) else 0
    starts = np.zeros(total, bool)
    starts[begins] = True
    own = np.ones(total, bool)
    out = np.empty(total, np.int32)
    for around, places in ((layout.before, begins), (layout.after, ends - 1)):
        if around:
            out[places] = around[0]
            own[places] = False
    out[own] = ids
    also = {name: _beside(element, name, own) for name in layout.also}
    return _Part(state, out, starts, also)


def _beside(element: Any, name: str, own: np.ndarray) -> np.ndarray:
    """The values of a field at the places of the tokens, 0 beside them."""
    if not isinstance(element, Mapping) or name not in element:
        raise InputError(f"also={name!r}: the element has no such field")
    values = np.asarray(element[name])
    if values.shape != (np.count_nonzero(own),) or values.dtype.kind not in "iufb":
        raise InputError(
            f"also={name!r}: the field must have one number for each of the {np.count_nonzero(own)} tokens, "
            f"and is {values.dtype} of shape {values.shape}"
        )
    out = np.zeros(len(own), values.dtype)
    out[own] = values
    return out


def _checked_ids(ids: Any) -> np.ndarray:
    """int32[k]; nothing is rounded or wrapped."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputTypeError(f"ids must be integers in one dimension, not {array.dtype} of shape {array.shape}")
    if array.dtype != np.int32 and array.size and (array.min() < 0 or array.max() >= 1 << 31):
        raise InputError("ids holds an integer that is no id: ids are 0 and greater, below 2**31")
    return array.astype(np.int32, copy=False)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputTypeError(f"{name} must be an int, not {type(value).__name__}")
    return int(value)


def _id(name: str, value: Any) -> int:
    if not 0 <= _integer(name, value) < 1 << 31:
        raise InputError(f"{name}={value} is no id: ids are 0 and greater, below 2**31")
    return int(value)
