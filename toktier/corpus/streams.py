"""An input's bytes, whatever it is compressed with."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import zlib
from collections.abc import Iterator
from typing import Any

from toktier.corpus.inputs import Input
from toktier.extras import need

BLOCK = 1 << 20


class BrokenStream(Exception):
    """A compressed file ends early or is damaged; says why."""


class Stream:
    """Reads blocks of an input from `start` to `stop` (of the decompressed bytes, where there is compression).

    Attributes:
      position: of the next byte in the decompressed input.
    """

    def __init__(self, handle: Any, start: int, stop: int | None) -> None:
        self._handle, self._stop = handle, stop
        self.position = start

    def block(self) -> bytes:
        """The next bytes, b"" at the end.

        Raises:
          BrokenStream: there should be more, or the compressed bytes make no sense.
        """
        size = BLOCK if self._stop is None else min(BLOCK, self._stop - self.position)
        if size <= 0:
            return b""
        try:
            # read1 gives what is sound in front of damage, where read would raise without it
            data = bytes(getattr(self._handle, "read1", self._handle.read)(size))
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as e:
            raise BrokenStream(str(e) or type(e).__name__) from e
        except OSError as e:
            if e.errno is not None:  # the disk's fault, not the data's
                raise
            raise BrokenStream(str(e)) from e
        self.position += len(data)
        return data


@contextlib.contextmanager
def opened(source: Input, start: int = 0, stop: int | None = None) -> Iterator[Stream]:
    """The bytes of an input; `start` and `stop` only where it is not compressed.

    Raises:
      MissingExtraError: zstd, which pyarrow reads, without pyarrow.
    """
    if not source.compression:
        with open(source.path, "rb") as handle:
            handle.seek(start)
            yield Stream(handle, start, stop)
        return
    with contextlib.closing(_decompressed(source)) as unpacked:
        yield Stream(unpacked, 0, None)


def _decompressed(source: Input) -> Any:
    if source.compression == "gzip":
        return gzip.open(source.path, "rb")
    if source.compression == "bz2":
        return bz2.open(source.path, "rb")
    if source.compression == "xz":
        return lzma.open(source.path, "rb")
    pyarrow = need("pyarrow", "corpus", f"reading {source.path}")
    return pyarrow.CompressedInputStream(pyarrow.OSFile(source.path, "rb"), "zstd")
