"""Log lines without what clients sent."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import Any


def where(error: BaseException) -> str:
    """An error's class and the lines it passed, without its message, which may quote what a client sent."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = " < ".join(f"{f.filename}:{f.lineno} {f.name}" for f in reversed(frames[-12:]))
    return f"{type(error).__module__}.{type(error).__qualname__} at {lines}"


class NoText(logging.Formatter):
    """Log lines in which an exception has no message, since it may quote what a client sent."""

    def formatException(self, ei: Any) -> str:
        return where(ei[1])


def log_to_stderr(level: str) -> None:
    """Log lines of the whole process to stderr; those of the service and of uvicorn from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(NoText("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("toktier", "uvicorn"):
        logging.getLogger(name).setLevel(level.upper())
    log = logging.getLogger("toktier.serve")
    threading.excepthook = lambda args: log.error("a thread failed: %s", where(args.exc_value or SystemExit()))
    sys.unraisablehook = lambda args: log.error("a finalizer failed: %s", where(args.exc_value or SystemExit()))
