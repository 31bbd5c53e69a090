"""How soon a thread of this process gives way to another one that waits for the interpreter.

CPython's default is 5 ms.  A continuation of 0.5 ms that waits for a thread in the middle of a long encode would wait
that long each time it needs the interpreter.  The setting is the process's, so tiers that are open at the same time
share it, and the last one to close puts back what was there.
"""

from __future__ import annotations

import sys
import threading

_lock = threading.Lock()
_users = 0
_before = 0.0
_ours = 0.0


def shorten(seconds: float) -> None:
    """Give way after so many seconds or fewer until `restore`."""
    global _users, _before, _ours
    with _lock:
        if not _users:
            _before = sys.getswitchinterval()
        _users += 1
        if seconds < sys.getswitchinterval():
            sys.setswitchinterval(seconds)
            _ours = sys.getswitchinterval()


def restore() -> None:
    """Undo one `shorten`; a setting that somebody else made since is left alone."""
    global _users
    with _lock:
        _users -= 1
        if not _users and sys.getswitchinterval() == _ours:
            sys.setswitchinterval(_before)
