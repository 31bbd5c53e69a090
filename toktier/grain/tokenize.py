"""Text to ids, as transformations of a Grain pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import grain
import numpy as np

from toktier.added import Mode
from toktier.errors import InputError, InputTypeError
from toktier.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class _Options:
    """What both transformations take.  Picklable, since a tokenizer pickles by its source; safe from any thread.

    In a worker process the ids come from the host engine (`engine="auto"` leaves the device to the trainer), which are
    the same ids.

    Args:
      tokenizer: whose ids.
      field: where elements are dicts, the field that holds the text; it is taken out.
      out: the field that the ids go to.
      add_special_tokens, special_tokens, engine: as for `Tokenizer.encode`.
    """

    tokenizer: Tokenizer
    _: dataclasses.KW_ONLY
    field: str | None = None
    out: str = "ids"
    add_special_tokens: bool = False
    special_tokens: Mode | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.tokenizer, Tokenizer):
            raise InputTypeError(
                f"tokenizer must be a toktier.Tokenizer, not {type(self.tokenizer).__name__}; toktier.load makes one"
            )

    @property
    def _how(self) -> dict[str, Any]:
        return {
            "add_special_tokens": self.add_special_tokens,
            "special_tokens": self.special_tokens,
            "engine": self.engine,
        }

    def _text(self, element: Any, name: str) -> Any:
        """The text of an element, of whatever type: the tokenizer says what is wrong with it."""
        if self.field is None:
            if isinstance(element, Mapping):
                raise InputTypeError(f"{name} is a dict with {_keys(element)}; name the field of the text: field=...")
            return element
        if not isinstance(element, Mapping):
            raise InputTypeError(f"{name} must be a dict, since field={self.field!r}, not {type(element).__name__}")
        if self.field not in element:
            raise InputError(f"{name} has no field {self.field!r}; it has {_keys(element)}")
        return element[self.field]

    def _rest(self, element: Mapping[str, Any], name: str, new: tuple[str, ...]) -> dict[str, Any]:
        """The other fields of an element, none of which the ids may replace."""
        rest = {key: value for key, value in element.items() if key != self.field}
        if taken := [key for key in new if key in rest]:
            raise InputError(f"{name} already has a field {taken[0]!r}; give the ids another name: out=...")
        return rest


class Tokenize(_Options, grain.transforms.Map):
    """One text to its ids: `dataset.map(Tokenize(tok))`.

    An element is a str, which becomes int32[k]; or, with `field`, a dict whose text is replaced by the field `out`.

    Raises:
      InputTypeError, InputError: the element is none of these; otherwise as `Tokenizer.encode`.
    """

    def map(self, element: Any) -> Any:
        """int32[k], or the dict with it."""
        ids = self.tokenizer.encode(self._text(element, "the element"), **self._how)
        return ids if self.field is None else {**self._rest(element, "the element", (self.out,)), self.out: ids}


class TokenizeBatch(_Options, grain.transforms.Map):
    """Many texts to their ids in one call: `dataset.batch(1024, batch_fn=list).map(TokenizeBatch(tok))`.

    An element is a list of str, or, with `field`, of dicts.  It becomes `{out: int32[k], "offsets": int64[n + 1]}`, in
    which text i has the ids `ids[offsets[i]:offsets[i + 1]]` (`toktier.Batch`); other fields become lists.

    Grain's own batch of str is an array of dtype U, from which NumPy drops the NUL characters at each text's end; so
    that is refused, and `batch_fn=list` is the way out.

    Raises:
      InputTypeError, InputError: the element is none of these; otherwise as `Tokenizer.encode_batch`.
    """

    def map(self, element: Any) -> dict[str, Any]:
        """The ids of all texts, and where each text's begin."""
        if not isinstance(element, (list, tuple)):
            what = f"an array of dtype {element.dtype}" if isinstance(element, np.ndarray) else type(element).__name__
            raise InputTypeError(f"the element must be a list, not {what}: batch with dataset.batch(n, batch_fn=list)")
        texts = [self._text(one, f"element[{k}]") for k, one in enumerate(element)]
        batch = self.tokenizer.encode_batch(texts, **self._how)
        others = {} if self.field is None else self._others(element)
        return {**others, self.out: batch.ids, "offsets": batch.offsets}

    def _others(self, rows: list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...]) -> dict[str, list[Any]]:
        rests = [self._rest(row, f"element[{k}]", (self.out, "offsets")) for k, row in enumerate(rows)]
        for k, rest in enumerate(rests):
            if rest.keys() != rests[0].keys():
                raise InputError(f"element[{k}] has {_keys(rest)}, but element[0] {_keys(rests[0])}: fields differ")
        return {key: [rest[key] for rest in rests] for key in (rests[0] if rests else ())}


def _keys(element: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, element)) or "no field at all"
