"""Text in: files and stdin as bytes, and how far they are read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

BLOCK = 1 << 22  # bytes read at a time


def label(path: str) -> str:
    """How messages name an input."""
    return "<stdin>" if path == "-" else path


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file, or stdin for `-`, as bytes; its `name` is how messages call it."""
    if path == "-":
        yield sys.stdin.buffer
    else:
        with Path(path).open("rb") as handle:
            yield handle


def progress(paths: list[str]) -> tqdm:
    """A progress bar in bytes of input on stderr; silent unless that is a terminal and the work takes a second."""
    known = [p for p in paths if p != "-" and Path(p).is_file()]
    total = sum(Path(p).stat().st_size for p in known) if len(known) == len(paths) else None
    return tqdm(
        total=total, unit="B", unit_scale=True, unit_divisor=1024, delay=1, leave=False, disable=not sys.stderr.isatty()
    )
