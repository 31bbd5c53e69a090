"""Runs a corpus run that is killed before, in and after each of its writes to disk in turn, and then goes on.

    python corpus_steps.py INPUT FOLDER FIRST STRIDE

A process of its own, since it forks.  Prints how many places there were; ends with a traceback where a run that went on
did not write what one that was never killed writes.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import pyarrow.parquet  # noqa: F401  imported once, and not by each child

import toktier
from toktier import corpus
from toktier.corpus import durable

SETTINGS = corpus.Settings(shard_bytes=1500, processes=1)


class Killer:
    """Counts the steps that touch the disk, and kills this process at one of them."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call):
        def wrapped(*args, **kwargs):
            self.step()
            result = call(*args, **kwargs)
            self.step()
            return result

        return wrapped

    def half(self, write):
        def wrapped(file, data):
            view = memoryview(data).cast("B")
            write(file, view[: len(view) // 2])
            file.flush()
            self.step()
            write(file, view[len(view) // 2 :])
            return len(view)

        return wrapped

    def install(self) -> None:
        for name in ("fsync", "replace"):
            setattr(os, name, self.around(getattr(os, name)))
        Path.unlink = self.around(Path.unlink)
        durable.Hashed.write = self.half(durable.Hashed.write)


def forked(tok, source: str, folder: Path, kill_at: int) -> int:
    """The wait status of a run in a process of its own; `kill_at` 0: it is not killed."""
    child = os.fork()
    if child == 0:
        os.fsync = lambda descriptor: None  # a kill, unlike a loss of power, takes nothing from the system's buffers
        try:
            if kill_at:
                Killer(kill_at).install()
            corpus.run(tok, [source], folder, SETTINGS)
            os._exit(0)
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
            os._exit(1)
    return os.waitpid(child, 0)[1]


def content(folder: Path) -> dict[str, bytes]:
    """All files of a finished run, without what says how long it took."""
    files = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}
    manifest = json.loads(files["manifest.json"])
    del manifest["run"]
    return files | {"manifest.json": json.dumps(manifest).encode()}


def main() -> None:
    source, base, first, stride = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    tok = toktier.load("cl100k_base")
    tok.encode("warm up", engine="host")
    assert forked(tok, source, base / "whole", 0) == 0
    want = content(base / "whole")
    for at in itertools.count(first, stride):
        folder = base / f"killed-{at}"
        status = forked(tok, source, folder, at)
        if status == 0:  # it was done before it came so far
            print(at)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, (at, status)
        assert forked(tok, source, folder, 0) == 0, at
        assert content(folder) == want, at


main()
