"""A source that was read: the frozen spec, and the means to make its reference engine."""

from __future__ import annotations

import functools
from typing import Any

from toktier.reference import HuggingFaceReference, Reference, TiktokenReference, TokenizerFile
from toktier.spec import Spec


class Source:
    """What `read` returns.  Immutable and picklable.

    Attributes:
      spec: the specification.
      recipe: for a tokenizer.json, how to make its reference engine; None for tiktoken, whose spec says everything.
    """

    def __init__(self, spec: Spec, recipe: TokenizerFile | None = None) -> None:
        self.spec = spec
        self.recipe = recipe

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self.spec, self.recipe)

    def __repr__(self) -> str:
        return f"<toktier source {self.spec.name!r} of {self.spec.reference}>"

    @functools.cached_property
    def reference(self) -> Reference:
        """The reference engine; the native engine behind it is made on its first use."""
        if self.recipe is None:
            return TiktokenReference(self.spec)
        return HuggingFaceReference(self.spec, self.recipe)
