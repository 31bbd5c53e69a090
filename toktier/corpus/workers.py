"""Units spread over processes.  A worker that dies is replaced and its unit done again; one that lives outlasts nobody.

Each worker has a pipe of its own, so it is always known which unit a dead one had.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from toktier.corpus.scan import Segment
from toktier.corpus.unit import Job, do
from toktier.errors import CorpusError, ToktierError

TRIES = 3  # of a unit whose worker dies
Task = tuple[int, tuple[Segment, ...]]
Progress = Callable[[int], Any]


def here(job: Job, tasks: list[Task], progress: Progress) -> Iterator[dict[str, Any]]:
    """The records of units done in this process."""
    encode = job.encoder()
    for number, segments in tasks:
        yield do(job, number, segments, encode, progress)


def spread(job: Job, tasks: list[Task], processes: int, progress: Progress) -> Iterator[dict[str, Any]]:
    """The records of units as they are done by several processes (spawned, never forked), in any order.

    Raises:
      what `unit.do` raises in a worker; CorpusError where a unit's workers die TRIES times.
    """
    waiting, tries = deque(tasks), dict.fromkeys((number for number, _ in tasks), 0)
    crew: list[_Worker] = []
    try:
        while waiting or any(w.task for w in crew):
            while waiting and len(crew) < processes and len(crew) < len(waiting) + sum(bool(w.task) for w in crew):
                crew.append(_Worker(job))
            for worker in crew:
                if waiting and worker.task is None:
                    worker.give(waiting.popleft())
            ready = wait([w.pipe for w in crew if w.task])
            for worker in [w for w in crew if w.pipe in ready]:
                kind, value = worker.answer()
                if kind == "bytes":
                    worker.told += value
                    progress(value)
                elif kind == "record":
                    worker.task = None
                    yield value
                elif kind == "error":
                    raise value
                else:
                    crew.remove(worker)
                    progress(-worker.told)
                    task, code = worker.end()
                    tries[task[0]] += 1
                    if tries[task[0]] == TRIES:
                        raise CorpusError(_died(job, task, code))
                    waiting.appendleft(task)
    finally:
        for worker in crew:
            worker.end()


def _died(job: Job, task: Task, code: int | None) -> str:
    parts = ", ".join(f"{job.inputs[s.input].path} [{s.start}, {s.stop})" for s in task[1][:3])
    return (
        f"unit {task[0]} ({parts}): its worker died {TRIES} times, last with exit code {code} (-9 is often a lack of "
        "memory); finished shards are kept: run the same command again with fewer --processes, or look for what is "
        "unusual in this part"
    )


class _Worker:
    """A process, the pipe to it, and the unit it has."""

    def __init__(self, job: Job) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.task: Task | None = None
        self.told = 0  # bytes of its unit that it has reported
        self._process = spawn.Process(target=_serve, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()  # so that its end of the pipe closes when it ends

    def give(self, task: Task) -> None:
        self.task, self.told = task, 0
        with contextlib.suppress(OSError):  # it is dead, which `answer` will tell
            self.pipe.send(task)

    def answer(self) -> tuple[str, Any]:
        """What it has to say: ("bytes", n), ("record", r), ("error", e), or ("dead", None)."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return "dead", None

    def end(self) -> tuple[Task, int | None]:
        """Ends the process if need be; returns what it had to do and its exit code."""
        self._process.kill()
        self._process.join()
        self.pipe.close()
        task, code = self.task, self._process.exitcode
        self._process.close()
        return task, code  # type: ignore[return-value]


def _serve(pipe: Connection, job: Job) -> None:
    """A worker's life: units until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent sees to it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        encode = job.encoder()
        while True:
            number, segments = pipe.recv()
            pipe.send(("record", do(job, number, segments, encode, lambda n: pipe.send(("bytes", n)))))
    except (EOFError, BrokenPipeError):
        return  # the parent is gone
    except Exception as e:
        if not isinstance(e, (ToktierError, OSError)):
            e.add_note(f"in a worker:\n{traceback.format_exc()}")
        with contextlib.suppress(OSError):
            try:
                pipe.send(("error", e))
            except (TypeError, AttributeError, pickle.PicklingError):
                pipe.send(("error", RuntimeError(traceback.format_exc())))


def _end_with_parent() -> None:
    """Ends this process as soon as its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
