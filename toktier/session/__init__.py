"""Sessions: exact ids of a text that changes, with work that follows the change and never the context."""

from .patch import Patch
from .session import Session
from .store import SessionStore

__all__ = ["Patch", "Session", "SessionStore"]
