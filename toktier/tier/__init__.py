"""The tier: many tokenizers and sessions behind one object that picks the cheapest exact way for every request."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answer import Answer as Answer
    from .errors import DeadlineError as DeadlineError
    from .errors import QueueFullError as QueueFullError
    from .errors import TierClosedError as TierClosedError
    from .errors import TierError as TierError
    from .errors import UnknownSessionError as UnknownSessionError
    from .errors import UnknownTokenizerError as UnknownTokenizerError
    from .thresholds import Thresholds as Thresholds
    from .tier import Tier as Tier
    from .verifier import Verifier as Verifier

_HOMES = {
    "Answer": "answer",
    "DeadlineError": "errors",
    "QueueFullError": "errors",
    "Thresholds": "thresholds",
    "Tier": "tier",
    "TierClosedError": "errors",
    "TierError": "errors",
    "UnknownSessionError": "errors",
    "UnknownTokenizerError": "errors",
    "Verifier": "verifier",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module 'toktier.tier' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
