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

from toktier.npy import NpyWriter, complete_file

FORMATS = ("text", "json", "npy")
_SUFFIX = {".npy": "npy", ".json": "json", ".jsonl": "json"}


def format_of(chosen: str | None, output: str) -> str:
    """--format, or what the name of --output says, or text."""
    return chosen or _SUFFIX.get(Path(output).suffix.lower(), "text")


@contextlib.contextmanager
def sink(output: str) -> Iterator[BinaryIO]:
    """The stream to write to: stdout for `-`, else a temporary file that takes the name `output` on success only."""
    if output == "-":
        yield sys.stdout.buffer
        return
    with complete_file(output) as handle:
        yield handle


class IdWriter:
    """Takes the ids of one input after the other, each in any number of arrays: `begin`, `ids` ..., `end`."""

    def __init__(self, stream: BinaryIO, kind: str) -> None:
        self.stream = stream
        self.kind = kind
        self.count = 0
        self._kept: list[np.ndarray] = []
        self._npy: NpyWriter | None = None

    def begin(self, name: str) -> None:
        """A new input starts."""
        self.count = 0
        if self.kind == "json":
            self.stream.write(f'{{"file": {json.dumps(name)}, "ids": ['.encode())
        elif self.kind == "npy" and self._seekable:
            self._npy = NpyWriter(self.stream)

    def ids(self, ids: np.ndarray) -> None:
        """More ids (int32[k]) of the current input."""
        if self.kind == "npy":
            if self._npy is not None:
                self._npy.write(ids)
            else:
                self._kept.append(ids)
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
        else:
            np.save(self.stream, np.concatenate([*self._kept, np.zeros(0, "<i4")]))

    @property
    def _seekable(self) -> bool:
        """Whether the header can be put right at the end, so that ids need not be kept (not so in a pipe)."""
        return self.stream is not sys.stdout.buffer


def refuse_binary_terminal(kind: str, output: str) -> None:
    """A .npy file on a terminal helps nobody."""
    if kind == "npy" and output == "-" and sys.stdout.isatty():
        raise click.UsageError("--format npy writes binary data: add --output FILE.npy or redirect stdout")
