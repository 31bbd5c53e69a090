"""Ids out: text, JSON lines or .npy, to stdout or to a file that appears only when it is complete."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click
import numpy as np

from toktier.npy import NpyWriter, complete_file, spooled

FORMATS = ("text", "json", "npy")
_SUFFIX = {".npy": "npy", ".json": "json", ".jsonl": "json", ".txt": "text"}


def format_of(chosen: str | None, output: str) -> str:
    """--format, or what the suffix of --output says; text where it has none.

    Raises:
      click.UsageError: a suffix that is not known, such as .npz, may ask for what is not written.
    """
    suffix = Path(output).suffix.lower()
    if chosen or not suffix:
        return chosen or "text"
    if suffix not in _SUFFIX:
        known = ", ".join(_SUFFIX)
        raise click.UsageError(
            f"--output {output}: {suffix} says no format; known are {known}, or choose one with --format "
            f"({', '.join(FORMATS)})"
        )
    return _SUFFIX[suffix]


@contextlib.contextmanager
def sink(output: str, kind: str = "text") -> Iterator[BinaryIO]:
    """The stream to write to: stdout for `-`, else a temporary file that takes the name `output` on success only.

    A .npy file for stdout waits in a temporary file too: its header holds the number of ids, and stdout is a pipe, or
    a file that others append to.
    """
    if output != "-":
        with complete_file(output) as handle:
            yield handle
    elif kind == "npy":
        with spooled(lambda: contextlib.nullcontext(sys.stdout.buffer)) as handle:
            yield handle
    else:
        yield sys.stdout.buffer


class IdWriter:
    """Takes the ids of one input after the other, each in any number of arrays: `begin`, `ids` ..., `end`.

    Args:
      stream: what `sink` gives; for .npy it is seekable.
      kind: of FORMATS.
    """

    def __init__(self, stream: BinaryIO, kind: str) -> None:
        self.stream = stream
        self.kind = kind
        self.count = 0
        self._npy: NpyWriter | None = None

    def begin(self, name: str) -> None:
        """A new input starts."""
        self.count = 0
        if self.kind == "json":
            self.stream.write(f'{{"file": {json.dumps(name)}, "ids": ['.encode())
        elif self.kind == "npy":
            self._npy = NpyWriter(self.stream)

    def ids(self, ids: np.ndarray) -> None:
        """More ids (int32[k]) of the current input."""
        if self._npy is not None:
            self._npy.write(ids)
        elif len(ids):
            separator = ", " if self.kind == "json" else " "
            lead = separator if self.count else ""
            self.stream.write((lead + separator.join(map(str, ids.tolist()))).encode("ascii"))
        self.count += len(ids)

    def end(self) -> None:
        """The current input is complete."""
        if self.kind == "json":
            self.stream.write(f'], "count": {self.count}}}\n'.encode("ascii"))
        elif self.kind == "text":
            self.stream.write(b"\n")
        elif self._npy is not None:
            self._npy.close()


def refuse_binary_terminal(kind: str, output: str) -> None:
    """A .npy file on a terminal helps nobody."""
    if kind == "npy" and output == "-" and sys.stdout.isatty():
        raise click.UsageError("--format npy writes binary data: add --output FILE.npy or redirect stdout")
