"""Ids out: text, JSON lines or .npy, to stdout or to a file that appears only when it is complete."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click
import numpy as np

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
    target = Path(output)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class IdWriter:
    """Takes the ids of one input after the other, each in any number of arrays: `begin`, `ids` ..., `end`."""

    def __init__(self, stream: BinaryIO, kind: str) -> None:
        self.stream = stream
        self.kind = kind
        self.count = 0
        self._kept: list[np.ndarray] = []
        self._header = 0

    def begin(self, name: str) -> None:
        """A new input starts."""
        self.count = 0
        if self.kind == "json":
            self.stream.write(f'{{"file": {json.dumps(name)}, "ids": ['.encode())
        elif self.kind == "npy" and self._seekable:
            self._header = self._write_header(0)

    def ids(self, ids: np.ndarray) -> None:
        """More ids (int32[k]) of the current input."""
        if self.kind == "npy":
            data = np.ascontiguousarray(ids, dtype="<i4")
            if self._seekable:
                self.stream.write(data.data)
            else:
                self._kept.append(data)
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
        elif self._seekable:
            end = self.stream.tell()
            self.stream.seek(0)
            if self._write_header(self.count) != self._header:
                raise AssertionError("the .npy header changed its length")
            self.stream.seek(end)
        else:
            np.save(self.stream, np.concatenate([*self._kept, np.zeros(0, "<i4")]))

    @property
    def _seekable(self) -> bool:
        """Whether the header can be put right at the end, so that ids need not be kept (not so in a pipe)."""
        return self.stream is not sys.stdout.buffer

    def _write_header(self, count: int) -> int:
        """Write the .npy header for int32[count] and return its length, which NumPy pads for any count."""
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": (count,)})
        return self.stream.write(header.getvalue())


def refuse_binary_terminal(kind: str, output: str) -> None:
    """A .npy file on a terminal helps nobody."""
    if kind == "npy" and output == "-" and sys.stdout.isatty():
        raise click.UsageError("--format npy writes binary data: add --output FILE.npy or redirect stdout")
