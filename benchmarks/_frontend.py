"""Front ends in a process of their own: stateless ones, an engine each, and the tier; and the handle to such a process.

A message is a tuple (operation, number, session, text); the answer is a `Reply`.  Ids stay in the front end, as they
would on the way to an inference engine.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import dataclasses
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from toktier.workload import Material

STATELESS = ("reference", "host", "device", "tiktoken")
TIERS = ("tier", "tier-whole")
KINDS = (*STATELESS, *TIERS)
BATCH = 64  # requests of a replay that are sent at once
WAITING = 32  # samples that a patient front end lets wait for the verifier


@dataclasses.dataclass(frozen=True)
class Setup:
    """A front end.

    Attributes:
      kind: an engine ("reference", "host", "device", "tiktoken") that tokenizes each call's whole context; "tier",
        which is sent what a call appends; "tier-whole", which is sent whole contexts and finds the change.
      tokenizer: what `toktier.load` takes.
      workers: threads that tokenize.
      verify: share of the tier's answers that the shadow verifier checks.
      patient: wait before the verifier would drop a sample.
      warm: characters of the texts that are encoded before the first request.
    """

    kind: str = "tier"
    tokenizer: str = "o200k_base"
    workers: int = 2
    verify: float = 0.0
    patient: bool = False
    warm: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        """Is each call's whole context sent to it?"""
        return self.kind != "tier"

    @property
    def label(self) -> str:
        """Its name in a table."""
        return self.kind + (f", {100 * self.verify:g} % verified" if self.verify else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What a front end says of a request; seconds are of its own clock."""

    number: int
    error: str = ""
    seconds: float = 0.0  # of work, waiting left out
    queued: float = 0.0
    served: int = 0
    scanned: int = 0
    ids: int = 0
    path: str = ""


class _Base(abc.ABC):
    def __init__(self, connection: Connection, setup: Setup) -> None:
        import toktier

        self.connection, self.setup = connection, setup
        self.tok: Any = toktier.load(setup.tokenizer)
        self._sending = threading.Lock()

    def send(self, value: Any) -> None:
        with self._sending:
            self.connection.send(value)

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing is open, unless a subclass says so."""
        return

    @abc.abstractmethod
    def handle(self, operation: str, number: int, session: str, text: str, came: float) -> None:
        """Answer one request; `came` is when it was read."""


class Stateless(_Base):
    """Tokenizes whole texts; first come, first served."""

    def __init__(self, connection: Connection, setup: Setup) -> None:
        super().__init__(connection, setup)
        self.call = self._engine()
        self.call("Warm up: 1, 2, 3.\n" * 50)
        self.pool = ThreadPoolExecutor(setup.workers)

    def _engine(self) -> Any:
        tok, kind = self.tok, self.setup.kind
        if kind == "tiktoken":
            from peers_tiktoken import tiktoken_twin

            twin = tiktoken_twin(tok)
            if twin is None:
                raise ValueError(f"tiktoken is the reference of {self.setup.tokenizer}, or cannot have its pattern")
            return lambda text: twin.encode_to_numpy(text, allowed_special="all")
        if kind == "host":
            tok.core.host.warmup()
        material = Material(99)
        for size in self.setup.warm:  # of the device engine: real texts compile all that texts of that size need
            tok.encode(material.text(size), special_tokens="text", engine=kind)
        return lambda text: tok.encode(text, special_tokens="text", engine=kind)

    def handle(self, operation: str, number: int, session: str, text: str, came: float) -> None:
        if operation == "delete":
            self.send(Reply(number))
        else:
            self.pool.submit(self._work, number, text, came)

    def _work(self, number: int, text: str, came: float) -> None:
        begin = time.perf_counter()
        try:
            ids = self.call(text)
        except Exception as e:
            self.send(Reply(number, f"{type(e).__name__}: {e}"))
            return
        seconds = time.perf_counter() - begin
        size = len(text.encode("utf-8", "surrogatepass"))
        self.send(Reply(number, "", seconds, begin - came, size, size, len(ids), self.setup.kind))

    def close(self) -> None:
        self.pool.shutdown()


class Tiered(_Base):
    """The tier, with the requests of each session in the order in which they came."""

    def __init__(self, connection: Connection, setup: Setup) -> None:
        super().__init__(connection, setup)
        from toktier.tier import Tier, Verifier

        verifier = None
        if setup.verify:
            # of a patient one as many may come at once as are sent at once, behind those that it waits for
            queue, room = (2 * WAITING + BATCH, 2 << 30) if setup.patient else (64, 64 << 20)
            verifier = Verifier(setup.verify, seed=1, keep="hash", queue=queue, max_bytes=room)
        self.verifier = verifier
        self.tier = Tier(self.tok, workers=setup.workers, max_queue=1 << 16, verifier=verifier)
        self.loop = asyncio.new_event_loop()
        self.locks: dict[str, asyncio.Lock] = {}
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        if not setup.patient:  # a replay counts every answer
            asyncio.run_coroutine_threadsafe(self.tier.encode_async("Warm up: 1, 2, 3.\n" * 50), self.loop).result()

    def handle(self, operation: str, number: int, session: str, text: str, came: float) -> None:
        asyncio.run_coroutine_threadsafe(self._serve(operation, number, session, text, came), self.loop)

    async def _serve(self, operation: str, number: int, session: str, text: str, came: float) -> None:
        async with self.locks.setdefault(session, asyncio.Lock()):
            waited = time.perf_counter() - came
            try:
                if self.setup.patient and self.verifier is not None:
                    while self.verifier.stats()["pending"] > WAITING:
                        await asyncio.sleep(0.002)
                if operation == "delete":
                    await asyncio.to_thread(self.tier.delete, session)
                    self.locks.pop(session, None)
                    self.send(Reply(number))
                    return
                call = self.tier.append_async if operation == "append" else self.tier.update_async
                answer = await call(session, text, create=True)
            except Exception as e:
                self.send(Reply(number, f"{type(e).__name__}: {e}"))
                return
        seconds, queued = answer.seconds - answer.queued, answer.queued + waited
        self.send(
            Reply(number, "", seconds, queued, answer.served_bytes, answer.scanned_bytes, len(answer.ids), answer.path)
        )

    def stats(self) -> dict[str, Any]:
        if self.verifier is not None:
            self.verifier.wait(300.0)
        return self.tier.stats()

    def close(self) -> None:
        self.tier.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def serve(connection: Connection, setup: Setup) -> None:
    """The process: answers until it is told to stop or nobody is there any more."""
    try:
        front: _Base = Tiered(connection, setup) if setup.kind in TIERS else Stateless(connection, setup)
    except Exception as e:
        connection.send(f"{type(e).__name__}: {e}")
        return
    connection.send("")
    try:
        while True:
            operation, number, session, text = connection.recv()
            came = time.perf_counter()
            if operation == "stop":
                break
            if operation == "stats":
                front.send(("stats", front.stats()))
            else:
                front.handle(operation, number, session, text, came)
    except (EOFError, ConnectionError):
        pass
    front.close()
    connection.close()


class FrontEnd:
    """The handle to a front end's process.

    Raises:
      RuntimeError: it could not start; the message says why.
    """

    def __init__(self, setup: Setup, patience: float = 300.0) -> None:
        context = multiprocessing.get_context("spawn")
        self.setup = setup
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, setup), daemon=False)
        self.process.start()
        theirs.close()
        if not self.connection.poll(patience):
            self.close()
            raise RuntimeError(f"the front end {setup.label} did not start within {patience:g} s")
        error = self.connection.recv()
        if error:
            self.close()
            raise RuntimeError(f"the front end {setup.label} did not start: {error}")

    def stats(self) -> dict[str, Any]:
        """The tier's counts, once its verifier has nothing pending; nothing else may be on the way."""
        self.connection.send(("stats", 0, "", ""))
        while isinstance(value := self.connection.recv(), Reply):  # late answers to "delete"
            pass
        return value[1]

    def memory(self) -> int:
        """Bytes of resident memory of the process and its children; 0 where that is not to be known."""
        return sum(_resident(pid) for pid in [self.process.pid, *_children(self.process.pid)])

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self.connection.send(("stop", 0, "", ""))
        self.process.join(60)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()

    def __enter__(self) -> FrontEnd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resident(pid: int | None) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _children(pid: int | None) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in file.read_text().split()]
        except OSError:
            continue
    return found
