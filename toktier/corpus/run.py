"""One run from beginning to end, and again after a kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toktier import cores
from toktier.corpus import finish, plan, shards, workers
from toktier.corpus.durable import locked, sync_folder, write_json
from toktier.corpus.encode import Encode
from toktier.corpus.inputs import expand
from toktier.corpus.settings import Settings, recipe
from toktier.corpus.unit import Job
from toktier.errors import CorpusError
from toktier.extras import need

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

Progress = Callable[[str, int, int], Any]

_DEFAULT = Settings()
_OURS = re.compile(
    r"plan\.json|manifest\.json|tokens\.bin|offsets\.bin|problems\.jsonl|\.lock"
    r"|shard-\d{5,}\.(parquet|tokens|lengths|json)|[^/]*\.part"
)


def run(
    tokenizer: Tokenizer,
    inputs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    settings: Settings = _DEFAULT,
    progress: Progress | None = None,
    encode: Callable[[Tokenizer], Encode] | None = None,
) -> dict[str, Any]:
    """Tokenizes a corpus into a folder; the same call goes on where one that was killed stopped.

    Args:
      tokenizer: what encodes.
      inputs: files, folders, globs.
      out: the folder, made if need be.
      settings: see there.
      progress: is told a stage ("reading", "checking", "encoding", "joining"), bytes since the last call, and their
        total (0: not known).
      encode: for comparisons: makes another encoder in each worker; picklable where there are several.

    Returns:
      the manifest, which is also in `out/manifest.json`.

    Raises:
      InputError: inputs that are not there or not what they seem, a document that may not pass.
      CorpusError: another run's folder, a changed input or setting, a full disk, workers that die.
      EngineError: the engine asked for cannot run this tokenizer.

    >>> import tempfile, toktier, toktier.corpus
    >>> folder = tempfile.mkdtemp()
    >>> _ = open(f"{folder}/a.txt", "w").write("hello world\\nhi\\n")
    >>> chosen = toktier.corpus.Settings(lines=True, write="flat", processes=1)
    >>> made = toktier.corpus.run(toktier.load("o200k_base"), [f"{folder}/a.txt"], f"{folder}/out", chosen)
    >>> made["documents"], made["tokens"]
    (2, 3)
    >>> [document.tolist() for document in toktier.corpus.open(f"{folder}/out")]
    [[24912, 2375], [3686]]
    """
    say = _one_at_a_time(progress)
    folder = Path(out)
    wanted = recipe(settings, tokenizer)
    if settings.parquet:
        need("pyarrow.parquet", "corpus", "writing Parquet (--write flat does without it)")
    if settings.engine not in ("auto", "ray"):
        tokenizer._engine(settings.engine, 0)  # raises where the reference runs the tokenizer
    begin = time.perf_counter()
    sources = expand([os.fspath(name) for name in inputs], settings.format, folder)
    if folder.exists() and not folder.is_dir():
        raise CorpusError(f"{folder}: is a file; name a folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _begin(folder, settings)
        total = sum(os.path.getsize(source.path) for source in sources)
        made = plan.make(wanted, settings, sources, lambda n: say("reading", n, total))
        known = _agree(folder, made)
        if known is not None:
            finish.clear_parts(folder)
            if (folder / finish.MANIFEST).exists():
                return _complete(folder, made)
        if known is None or known["options"]["errors"] != settings.errors:
            write_json(folder / plan.NAME, made.as_json())
        records = dict(_finished(folder, made, say) if known is not None else ())
        tasks = [(k, unit) for k, unit in enumerate(made.units) if k not in records]
        job = Job(tokenizer, settings, wanted["options"], made.inputs, folder.resolve(), plan.stamp(folder), encode)
        size = sum(s.size for unit in made.units for s in unit)
        say("encoding", sum(s.size for k in records for s in made.units[k]), size)
        ran: dict[str, Any] = {"shards_found": len(records)}
        try:
            with contextlib.closing(_work(job, tasks, ran, lambda n: say("encoding", n, size))) as work:
                for record in work:
                    records[record["shard"]] = record
        finally:
            finish.clear_parts(folder)  # of workers that were ended
        ordered = [records[k] for k in range(len(made.units))]
        ran["seconds"] = round(time.perf_counter() - begin, 3)
        joined = sum(r["files"].get("tokens", {"bytes": 0})["bytes"] for r in ordered)
        return finish.finish(folder, made, ordered, ran, lambda n: say("joining", n, joined))


def _one_at_a_time(progress: Progress | None) -> Progress:
    """Tells `progress`, if there is one, from any thread; inputs are read by several."""
    lock = threading.Lock()

    def say(stage: str, done: int, total: int) -> None:
        if progress is not None:
            with lock:
                progress(stage, done, total)

    return say


def _begin(folder: Path, settings: Settings) -> None:
    """Sees to it that the folder is ours to write to."""
    others = sorted(p.name for p in folder.iterdir() if not _OURS.fullmatch(p.name))
    ours = [p for p in folder.iterdir() if _OURS.fullmatch(p.name) and p.name != ".lock"]
    planned = (folder / plan.NAME).exists()
    if others and not planned:
        raise CorpusError(f"{folder}: is not empty (it has {others[0]!r}); name a new folder with --out")
    if settings.restart:
        # the plan goes first: without it nothing else counts
        for path in sorted(ours, key=lambda p: p.name != plan.NAME):
            path.unlink()
            if path.name == plan.NAME:
                sync_folder(folder)
    elif not planned and any(not p.name.endswith(".part") for p in ours):
        raise CorpusError(
            f"{folder}: has shards but no {plan.NAME}, so it is not known what they are of; name another --out, or "
            "begin anew with --restart"
        )


def _agree(folder: Path, made: plan.Plan) -> dict[str, Any] | None:
    """The plan that is there already, None for a new folder.

    Raises:
      CorpusError: it is another one; says what differs.
    """
    known = plan.read(folder)
    if known is not None and (told := plan.differences(known, made.as_json())):
        more = f"; and {len(told) - 5} more" if len(told) > 5 else ""
        raise CorpusError(
            f"{folder}: was begun otherwise: {'; '.join(told[:5])}{more}. Put it back as it was, name another "
            "--out, or begin anew with --restart"
        )
    return known


def _complete(folder: Path, made: plan.Plan) -> dict[str, Any]:
    """The manifest of a run that is complete already."""
    try:
        manifest = json.loads((folder / finish.MANIFEST).read_text(encoding="utf-8"))
        records = manifest["shards"]
    except (ValueError, KeyError, TypeError) as e:
        raise CorpusError(f"{folder / finish.MANIFEST}: is damaged ({e}); begin anew with --restart") from e
    finish.clear(folder, records)  # a kill may have come between the manifest and this
    return manifest


def _finished(folder: Path, made: plan.Plan, say: Progress) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and record of each shard that an earlier run finished, its files read again and found right."""
    for number in range(len(made.units)):
        record = shards.finished(folder, number, made.recipe["options"]["write"])
        if record is not None:
            say("checking", sum(entry["bytes"] for entry in record["files"].values()), 0)
            yield number, record


def _work(
    job: Job, tasks: list[workers.Task], ran: dict[str, Any], progress: Callable[[int], Any]
) -> Generator[dict[str, Any], None, None]:
    """The records of units as they are done, in any order; says in `ran` by whom."""
    settings = job.settings
    ran["engine"] = settings.engine
    if job.tokenizer.core.reason:
        ran["reference_because"] = job.tokenizer.core.reason
    if settings.engine == "ray":
        from toktier.corpus import ray_engine

        yield from ray_engine.spread(job, tasks, ran, progress)
        return
    count = settings.processes or (1 if settings.engine == "device" else cores.usable())
    ran["processes"] = count = max(1, min(count, len(tasks)))
    yield from workers.here(job, tasks, progress) if count == 1 else workers.spread(job, tasks, count, progress)
