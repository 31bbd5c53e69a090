"""What `encode` and `count` share: their settings, and the ids of one input, chunk by chunk."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from toktier.cli import options, text
from toktier.errors import InputError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class EncodeSettings:
    """The options of `options.encoding_options`, under the same names."""

    source: str
    pattern: str | None
    engine: str
    special_tokens: str | None
    add_special_tokens: bool
    errors: str

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that `source` names, loaded once."""
        return options.load(self.source, self.pattern)

    @functools.cached_property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for `Tokenizer.encode`; what the user left open keeps the tokenizer's own default."""
        chosen = {"engine": self.engine, "add_special_tokens": self.add_special_tokens}
        if self.special_tokens is not None:
            chosen["special_tokens"] = self.special_tokens
        return chosen


def encoded(path: str, settings: EncodeSettings, bar: tqdm) -> Iterator[np.ndarray]:
    """The ids of one input as arrays int32[k] to be read one after the other."""
    tokenizer, begin, nothing = settings.tokenizer, 0, True
    whole = settings.add_special_tokens
    keywords = {**settings.keywords, "engine": _engine(path, settings)}
    for chunk in text.chunks(path, settings.errors, None if whole else tokenizer, bar):
        nothing = False
        try:
            ids = tokenizer.encode(chunk, **keywords)
        except InputError as e:
            after = f" (offsets count from character {begin})" if begin else ""
            raise type(e)(f"{text.label(path)}: {e}{after}") from e
        begin += len(chunk)
        yield np.asarray(ids)
    if nothing:
        yield np.asarray(tokenizer.encode("", **settings.keywords))


def _engine(path: str, settings: EncodeSettings) -> str:
    """The engine for the chunks of one input: "auto" is decided by the size of the whole, not of a chunk."""
    from toktier import routing

    if settings.engine != "auto" or path == "-" or (size := Path(path).stat().st_size) <= text.BLOCK:
        return settings.engine
    return "auto" if settings.tokenizer.core.reason else routing.choose(size, started=False)
