"""Ids on disk as .npy: an int32 array whose length is known at its end, in a file that appears only when complete."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import numpy as np

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    """A seekable binary file to write; it takes the name `path` on success only, and leaves nothing behind otherwise.

    A link is followed.  What `path` names may also be a pipe or a device: it is then given the bytes on success.

    Raises:
      OSError: it cannot be written; its `filename` is `path`, its text names the way out where that is known.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, f"{os.strerror(errno.EISDIR)}; name a file in it", os.fspath(path))
    if Path(path).exists() and not Path(path).is_file():
        with spooled(lambda: Path(path).open("wb")) as handle:
            yield handle
        return
    target = Path(os.path.realpath(path))
    with _named(path):
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with _named(path, only_unnamed=True), os.fdopen(descriptor, "wb") as handle:
            yield handle
        with _named(path):
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def spooled(opened: Callable[[], AbstractContextManager[BinaryIO]]) -> Iterator[BinaryIO]:
    """A temporary file to write and seek in; on success its bytes go to a stream that need not be seekable.

    A .npy header holds the number of ids, and a pipe takes no byte back.

    Args:
      opened: gives the stream, once the bytes are complete.
    """
    with tempfile.TemporaryFile() as spool:
        yield spool
        spool.seek(0)
        with opened() as stream:
            shutil.copyfileobj(spool, stream, 1 << 20)


@contextlib.contextmanager
def _named(path: str | os.PathLike[str], only_unnamed: bool = False) -> Iterator[None]:
    """Errors name the path that was given, not the temporary one; `only_unnamed`: those of a full disk that name none.

    (In the body of `complete_file` others fail too, such as the reading of an input.)
    """
    try:
        yield
    except OSError as e:
        if only_unnamed and (e.filename is not None or e.errno not in _FULL):
            raise
        ways = dict.fromkeys(_FULL, "; make room there, or name a file elsewhere")
        ways |= dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "; its folder is not there: make it first")
        raise OSError(e.errno, f"{e.strerror}{ways.get(e.errno or 0, '')}", os.fspath(path)) from e


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
