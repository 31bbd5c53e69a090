"""Files that are there whole or not at all, after a kill or a loss of power too, and the lock of a folder.

A file is written under a name of its own, synced, renamed, and the folder synced: what has its final name is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from toktier.errors import CorpusError

MARK = ".part"  # what the name of a file that is being written ends with
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Hashed:
    """A file to write that keeps count and sha256 of what went in.  Looks like a file to pyarrow."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._sha = raw, hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Appends bytes."""
        view = memoryview(data).cast("B")
        self._raw.write(view)
        self._sha.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes so far."""
        return self.size

    def flush(self) -> None:
        """Hands what is buffered to the system."""
        self._raw.flush()

    def close(self) -> None:
        """The owner closes the file beneath."""

    def writable(self) -> bool:
        """Yes."""
        return True

    def readable(self) -> bool:
        """No."""
        return False

    def seekable(self) -> bool:
        """No."""
        return False

    @property
    def record(self) -> dict[str, Any]:
        """{"bytes", "sha256"} of what was written."""
        return {"bytes": self.size, "sha256": self._sha.hexdigest()}


@contextlib.contextmanager
def disk(what: Path) -> Iterator[None]:
    """Makes a full disk, quota or file size limit a typed error that says how to go on.

    Raises:
      CorpusError: there was no room; what was complete stays.
    """
    try:
        yield
    except OSError as e:
        if e.errno not in _FULL:
            raise
        raise CorpusError(
            f"{what}: no room to write ({os.strerror(e.errno or 0)}); finished shards are kept: make room and run the "
            "same command again, which goes on from there"
        ) from e


class Pending:
    """A file that is being written: `commit` gives it its name, `drop` leaves nothing."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.part = target.with_name(f"{target.name}.{uuid.uuid4().hex[:12]}{MARK}")
        with disk(target):
            self._raw = self.part.open("wb")
        self.file = Hashed(self._raw)

    def commit(self) -> dict[str, Any]:
        """Syncs and renames; returns {"file", "bytes", "sha256"}."""
        with disk(self.target):
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
            os.replace(self.part, self.target)
            sync_folder(self.target.parent)
        return {"file": self.target.name, **self.file.record}

    def drop(self) -> None:
        """Gives the file up."""
        with contextlib.suppress(OSError):  # what a full disk did not take is given up too
            self._raw.close()
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)


def write_json(target: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    pending = Pending(target)
    try:
        with disk(target):
            pending.file.write(json.dumps(value, ensure_ascii=False, indent=1, default=int).encode() + b"\n")
        pending.commit()
    except BaseException:
        pending.drop()
        raise


def sync_folder(folder: Path) -> None:
    """Makes the renames in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(file: Path) -> dict[str, Any]:
    """{"bytes", "sha256"} of a file on disk."""
    with file.open("rb") as handle:
        return {"sha256": hashlib.file_digest(handle, "sha256").hexdigest(), "bytes": handle.tell()}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; the lock goes with the process, however it ends.

    Raises:
      CorpusError: another process holds it.
    """
    import fcntl

    with (folder / ".lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            handle.seek(0)
            raise CorpusError(
                f"{folder}: process {handle.read().strip() or '?'} is at work here; wait for it, or name another --out"
            ) from e
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield
