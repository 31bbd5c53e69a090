"""Units spread over a Ray cluster: the same plan, one task a unit, shards on a file system that all nodes share."""

from __future__ import annotations

import os
import platform
import uuid
from collections import deque
from collections.abc import Iterator
from typing import Any

from toktier.corpus.encode import Encode
from toktier.corpus.settings import Settings
from toktier.corpus.unit import Job, do
from toktier.corpus.workers import TRIES, Progress, Task
from toktier.errors import CorpusError, ToktierError
from toktier.extras import need

_STORE = 128 << 20  # bytes of object store in a cluster made for the run: only the tokenizer goes there
_jobs: dict[str, tuple[Job, Encode]] = {}  # in a worker: the job that it has been given, and its encoder


def spread(job: Job, tasks: list[Task], ran: dict[str, Any], progress: Progress) -> Iterator[dict[str, Any]]:
    """The records of units as the cluster's workers do them, in any order.

    Ray runs a task again whose worker or node is lost, TRIES times in all.

    Args:
      ran: is told the cluster, its nodes and the workers that took part.

    Raises:
      what `unit.do` raises in a worker; CorpusError where workers are lost again and again, or nodes share no files.
    """
    ray = need("ray", "ray", "engine='ray'")
    ours = not ray.is_initialized() and _connect(ray, job.settings)
    pending: dict[Any, Task] = {}
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        ran["ray"] = seen = {
            "cluster": "made for the run" if ours else "existing",
            "nodes": sum(node["Alive"] for node in ray.nodes()),
            "cores": cores,
            "workers": 0,
        }
        # a Ray worker is used for one job at a time, so what it keeps is small
        remote = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_unit)
        name, stored = uuid.uuid4().hex, [ray.put(job)]
        waiting, workers = deque(tasks), set()
        width = job.settings.processes or 2 * max(1, cores)
        while waiting or pending:
            while waiting and len(pending) < width:
                task = waiting.popleft()
                pending[remote.remote(name, stored, os.getcwd(), *task)] = task
            for done in ray.wait(list(pending), num_returns=1)[0]:
                task = pending.pop(done)
                record, worker = _result(ray, job, task, done)
                workers.add(worker)
                seen["workers"] = len(workers)
                progress(sum(s.size for s in task[1]))
                yield record
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        if ours:
            ray.shutdown()


def _connect(ray: Any, settings: Settings) -> bool:
    """Joins a cluster; returns whether it had to be made for this run."""
    quiet = {"log_to_driver": False, "logging_level": "warning"}
    address = settings.ray_address or os.environ.get("RAY_ADDRESS")
    try:
        ray.init(address=address or "auto", **quiet)
        return False
    except ConnectionError as e:
        if address:
            raise CorpusError(f"ray_address={address!r}: there is no Ray cluster to be reached ({e})") from e
    cores = settings.processes or None
    try:
        ray.init(address="local", num_cpus=cores, object_store_memory=_STORE, include_dashboard=False, **quiet)
    except Exception as e:  # Ray's own, such as for a raylet that takes more than half a minute to start
        ray.shutdown()
        raise CorpusError(
            f"no Ray cluster could be started on this machine ({e}); start one with `ray start --head`, or "
            "leave engine='ray' out"
        ) from e
    return True


def _result(ray: Any, job: Job, task: Task, done: Any) -> tuple[dict[str, Any], str]:
    """A task's record, whose files are here to be seen, and who did it."""
    try:
        record, worker = ray.get(done)
    except ray.exceptions.RayTaskError as e:
        if isinstance(e.cause, (ToktierError, OSError)):
            raise e.cause from None
        if "No module named" in str(e):
            raise CorpusError(
                f"a Ray worker cannot import what it needs ({str(e.cause or e).splitlines()[0]}); install "
                "this version of toktier[ray] on all nodes of the cluster"
            ) from e
        raise
    except ray.exceptions.RayError as e:
        raise CorpusError(
            f"unit {task[0]} ({job.inputs[task[1][0].input].path} ...): its Ray worker was lost {TRIES} times, last "
            f"{type(e).__name__} (often a lack of memory); finished shards are kept: run the same command again"
        ) from e
    for entry in record["files"].values():
        file = job.folder / entry["file"]
        if not file.exists() or file.stat().st_size != entry["bytes"]:
            raise CorpusError(
                f"{file}: was written by {worker} and is not to be seen here; --out must be on a file system that all "
                "nodes of the cluster share"
            )
    return record, worker


def _unit(name: str, stored: list[Any], folder: str, number: int, segments: Any) -> tuple[dict[str, Any], str]:
    """A Ray task: one unit.  `stored` holds the reference of the job, which a worker fetches once."""
    import ray

    node = platform.node()
    try:
        if name not in _jobs:
            os.chdir(folder)  # inputs are named from there
            _jobs.clear()
            job = ray.get(stored[0])
            _jobs[name] = (job, job.encoder())
        record = do(_jobs[name][0], number, segments, _jobs[name][1], lambda n: None)
    except FileNotFoundError as e:
        raise CorpusError(
            f"{e.filename}: is not there on node {node}; inputs and --out must be on a file system that all nodes "
            "of the cluster share"
        ) from e
    return record, f"{node} process {os.getpid()}"
