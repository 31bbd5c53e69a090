"""Errors of the tier.  Whichever is raised, the request changed nothing: a session is as it was before the call."""

from __future__ import annotations

from ..errors import ToktierError


class TierError(ToktierError, RuntimeError):
    """Base of the errors that only a tier raises."""


class QueueFullError(TierError):
    """More requests are in the tier than `max_queue`: send it later, or to another tier."""


class TierClosedError(TierError):
    """The tier was closed before the request was served."""


class DeadlineError(TierError, TimeoutError):
    """The request's `timeout` passed before its work was done; nothing of it was applied."""


class UnknownSessionError(TierError, LookupError):
    """No session has this name: it was never made, or it was deleted, evicted or expired."""


class UnknownTokenizerError(TierError, LookupError):
    """The tier holds no tokenizer of this name."""
