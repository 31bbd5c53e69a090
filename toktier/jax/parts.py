"""Long texts cut into parts that can be tokenized apart, so that rows need not be as long as the longest text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from toktier.errors import EngineError, InputError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer


class Parts(NamedTuple):
    """Texts cut into parts.

    Attributes:
      texts: the parts, in order.
      first, last: bool[n], whether each is the first and the last part of its text.
    """

    texts: list[str]
    first: np.ndarray
    last: np.ndarray


def cut(tok: Tokenizer, texts: Iterable[str], length: int) -> Parts:
    """Long texts in parts of at most `length` bytes whose ids, one part after the other, are those of the text.

    A cut is made where the pre-tokenizer is certified to start afresh and where no added token can lie, as those of
    `encode_file` are, so this holds in every mode of special tokens.

    Args:
      tok, texts: as for `batch`; length: bytes of a row.

    Raises:
      InputError: some stretch of a text has no such place within `length` bytes.
      EngineError: the tokenizer has no such places at all.

    >>> import toktier
    >>> from toktier.jax import cut
    >>> cut(toktier.load("o200k_base"), ["one two three", "four"], 8).texts
    ['one two', ' three', 'four']
    """
    from toktier.stream import cut_rules
    from toktier.tokenizer import _checked_list

    rules = None
    found: list[str] = []
    first: list[bool] = []
    last: list[bool] = []
    for k, text in enumerate(_checked_list(texts)):
        size = len(tok.core.pipeline.utf8(text)) if len(text) * 4 > length else 0
        at = 0
        if size > length:
            rules = rules or cut_rules(tok)
            if rules is None:
                raise EngineError(f"{tok.spec.name} has no places where a text may be cut; pass its texts whole")
            points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            # half of a surrogate pair counts as three bytes, which is never too few
            ends = np.cumsum(1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000))
            while (done := int(ends[at - 1]) if at else 0) + length < int(ends[-1]):
                most = int(np.searchsorted(ends, done + length, side="right"))
                place = rules.last(text, most, at)
                if place < 0:
                    raise InputError(
                        f"texts[{k}] cannot be cut within {length} bytes from character {at} on; pass a larger length"
                    )
                found.append(text[at:place])
                first.append(at == 0)
                last.append(False)
                at = place
        found.append(text[at:])
        first.append(at == 0)
        last.append(True)
    return Parts(found, np.array(first, bool), np.array(last, bool))
