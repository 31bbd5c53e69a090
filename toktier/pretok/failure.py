"""The one error of this package: a pre-tokenizer that cannot be turned into proven tables."""

from __future__ import annotations

from toktier.errors import ToktierError


class LearnError(ToktierError, ValueError):
    """The pre-tokenizer cannot be learned or proven; the message says why.  Such a tokenizer runs on its reference."""
