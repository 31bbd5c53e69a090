"""What `encode` and `count` share: their settings, and the ids of one input, chunk by chunk."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from toktier.cli import options, text

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class EncodeSettings:
    """The options of `options.encoding_options`, under the same names."""

    source: str
    pattern: str | None
    special_tokens_file: str | None
    engine: str
    special_tokens: str | None
    add_special_tokens: bool
    errors: str

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that `source` names, loaded once."""
        return options.load(self.source, self.pattern, self.special_tokens_file)

    @functools.cached_property
    def keywords(self) -> dict[str, Any]:
        """Keyword arguments for `Tokenizer.encode_file`; what the user left open keeps the tokenizer's own default."""
        chosen = {"engine": self.engine, "add_special_tokens": self.add_special_tokens, "errors": self.errors}
        if self.special_tokens is not None:
            chosen["special_tokens"] = self.special_tokens
        return chosen

    def check(self) -> None:
        """Raises what is wrong with the settings themselves, whatever the input."""
        self.tokenizer.encode_file(io.BytesIO(), **self.keywords)


def encoded(path: str, settings: EncodeSettings, bar: tqdm) -> Iterator[np.ndarray]:
    """The ids of one input as arrays int32[k] to be read one after the other."""
    with text.opened(path) as file:
        yield from settings.tokenizer.encode_file(
            file, chunk_bytes=text.BLOCK, progress=bar.update, **settings.keywords
        )
