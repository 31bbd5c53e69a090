"""Ids on disk as .npy: an int32 array whose length is known at its end, in a file that appears only when complete."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np


class NpyWriter:
    """Writes one int32 array, block by block, to a seekable binary stream; `close` puts its length in the header.

    Attributes:
      count: ids written so far (a Python int, so no length overflows).
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.count = 0
        self._stream = stream
        self._start = stream.tell()
        self._header = self._write_header()

    def write(self, ids: np.ndarray) -> None:
        """More ids, int32[k]."""
        self._stream.write(np.ascontiguousarray(ids, dtype="<i4").data)
        self.count += len(ids)

    def close(self) -> int:
        """Completes the header, leaves the stream at the end, and returns the number of ids."""
        end = self._stream.tell()
        self._stream.seek(self._start)
        if self._write_header() != self._header:
            raise AssertionError("the .npy header changed its length")  # NumPy pads it for any number of ids
        self._stream.seek(end)
        return self.count

    def _write_header(self) -> int:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<i4", "fortran_order": False, "shape": (self.count,)})
        return self._stream.write(header.getvalue())


@contextlib.contextmanager
def complete_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write; it takes the name `path` on success only, and leaves nothing behind otherwise."""
    target = Path(path)
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
