"""The verifier's worker process as seen from the process that starts it."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from multiprocessing import spawn
from typing import Any

from toktier.tier.pipe import Body, Pipe

_START = 300.0  # seconds that a worker may take until it answers for the first time
_GRACE = 1.0  # seconds between being told to end and being killed
_ONE_THREAD = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",  # nothing there needs JAX; should a library load it, it leaves accelerators alone
}


class WorkerProcess:
    """A worker; starts a fresh interpreter (no fork), which is told to end by the end of its input.

    Args:
      sources: names and what their tokenizers are read from.
      nice: what is added to the worker's niceness.

    Raises:
      OSError: no process can be started.
    """

    def __init__(self, sources: dict[str, Any], nice: int) -> None:
        path = [p or os.getcwd() for p in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from toktier.tier.verifier_worker import main; main()"
        executable = os.fsdecode(spawn.get_executable() or sys.executable)
        self._process = subprocess.Popen(
            [executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe = Pipe(os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno()))
        self._process.stdin.close()
        self._process.stdout.close()
        self._hello = ({"nice": nice}, [[pickle.dumps(sources, pickle.HIGHEST_PROTOCOL)]])

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Has it not ended?"""
        return self._process.poll() is None

    def hello(self) -> None:
        """Hand over what it needs and wait until it is ready.

        Raises:
          PipeClosed, PipeTimeout: it is not.
        """
        self._pipe.send(*self._hello, seconds=_START)
        self._pipe.receive(_START)

    def send(self, head: dict[str, Any], bodies: Iterable[Body], seconds: float) -> None:
        """As `Pipe.send`."""
        self._pipe.send(head, bodies, seconds)

    def receive(self, seconds: float) -> tuple[dict[str, Any], list[bytes]]:
        """As `Pipe.receive`."""
        return self._pipe.receive(seconds)

    def kill(self) -> None:
        """End it at once; the pipe stays, so a thread that waits for it finds it closed by the other side."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def close(self) -> None:
        """Close the pipe, which ends it; kill it if it is busy for longer than a moment."""
        self._pipe.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
