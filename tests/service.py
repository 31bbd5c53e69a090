"""A real `toktier serve` process for tests, on 127.0.0.1 and a free port."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

WAIT = 120.0  # seconds for a service to come up or to end: a machine under load is slow


class Service:
    """A running service.

    Attributes:
      url: where it is.  log: the file with its stderr.  process: the process.
    """

    def __init__(self, directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.log = directory / "serve.log"
        self._stream = self.log.open("ab")
        seen = self.log.stat().st_size
        command = [sys.executable, "-m", "toktier.cli", "serve", *arguments]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", **(environment or {})}
        self.process = subprocess.Popen(command, stdout=self._stream, stderr=self._stream, env=environment)
        end = time.monotonic() + WAIT
        while not (found := re.search(rb"on (http://\S+)", self.log.read_bytes()[seen:])):
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"no service: {self.log.read_text()}")
            time.sleep(0.05)
        self.url = found[1].decode().replace("0.0.0.0", "127.0.0.1")
        self.port = int(self.url.rpartition(":")[2])

    def children(self) -> list[int]:
        """Process ids of its children."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self.process.pid:
                    found.append(int(stat.parent.name))
        return found

    def lines(self) -> list[str]:
        """Its log."""
        return self.log.read_text().splitlines()

    def stop(self) -> int:
        """Ends it by SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(WAIT)
        self._stream.close()
        return status

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self.process.kill()
        self.process.wait(WAIT)
        self._stream.close()


@contextlib.contextmanager
def served(directory: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Service]:
    """A service that ends with the block."""
    service = Service(directory, *arguments, environment=environment)
    try:
        yield service
    finally:
        service.stop() if service.process.poll() is None else service.kill()
