"""Sessions: exact ids of a text that changes, with work that follows the change and never the context."""

from .session import Patch, Session
from .store import SessionStore

__all__ = ["Patch", "Session", "SessionStore"]
