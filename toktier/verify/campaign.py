"""The campaign: batches over processes, a journal, planted faults, one report."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from toktier import cores
from toktier.errors import EngineError, InputError
from toktier.testing import faults
from toktier.tokenizer import Tokenizer
from toktier.verify import documents
from toktier.verify.compare import Batch, Difference, Engine, batch, context, first_difference
from toktier.verify.journal import Journal
from toktier.verify.minimise import minimise

HELD, DIFFERS, ON_REFERENCE = 0, 1, 3
ENGINES = ("host", "device")
VERSION = 1  # of the journal
_SAMPLES = 8  # batches from which the places of faults are chosen

Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a campaign is run.

    Attributes:
      engines: of ENGINES.  processes: workers; 0 for one a core (one in all with the device engine).
      special_tokens: as for `Tokenizer.encode`.  errors: "strict" or "replace", for bytes that are not UTF-8.
      plants: faults to plant.  seed: of cuts, seams and faults.
      journal, resume: where results are kept, and whether to go on from there.
    """

    engines: tuple[str, ...] = ("host",)
    processes: int = 0
    special_tokens: Any = "parse"
    errors: str = "strict"
    plants: int = 0
    seed: int = 1
    journal: str | None = None
    resume: bool = False


def run(
    tokenizer: Tokenizer,
    files: Sequence[str | os.PathLike[str]],
    settings: Settings = Settings(),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compare toktier's engines with the reference on the text of files, at the levels of pieces, ids and ends.

    Args:
      progress: is told a stage, the steps done since the last call, and their total.

    Returns:
      The report, JSON-ready; its `status` is 0 where all holds, 1 where something differs or a planted fault was not
      found, 3 where the reference runs this tokenizer and there is nothing to compare.

    Raises:
      InputError: a file that is not UTF-8, no text in any file, a setting that is not known, a journal of something
        else.
    """
    if unknown := [e for e in settings.engines if e not in ENGINES]:
        raise InputError(
            f"engine={unknown[0]!r} cannot be compared with the reference; use one of {', '.join(ENGINES)}"
        )
    say = progress or (lambda stage, done, total: None)
    begin = time.perf_counter()
    loaded = [documents.read(f, settings.errors) for f in files]
    spec, core = tokenizer.spec, tokenizer.core
    report: dict[str, Any] = {
        "tokenizer": {
            "name": spec.name,
            "digest": spec.digest,
            "reference": f"{spec.reference} {spec.reference_version}",
        },
        "files": [{"file": f.path, "bytes": f.size, "sha256": f.sha256} for f in loaded],
        "engines": list(settings.engines),
        "seed": settings.seed,
    }
    if core.reason:
        return report | {"status": ON_REFERENCE, "reason": core.reason, "differences": [], "plants": []}
    if not any(f.text for f in loaded):
        empty = ", ".join(f.path for f in loaded[:3]) + (f" and {len(loaded) - 3} more" if len(loaded) > 3 else "")
        raise InputError(f"{empty or 'files'}: no text there, so nothing would be compared; name a file that has some")
    batches, n_seams = documents.plan([f.text for f in loaded], settings.seed)
    head = {"journal": VERSION, **report, "special_tokens": settings.special_tokens}
    journal = Journal(settings.journal, head, settings.resume)
    with tempfile.TemporaryDirectory(prefix="toktier-verify-") as store, _workers(tokenizer, settings, store) as work:
        try:
            todo = [(k, b) for k, b in enumerate(batches) if k not in journal.done]
            say("comparing", len(batches) - len(todo), len(batches))
            for result in work(_check, todo):
                journal.add(result)
                say("comparing", 1, len(batches))
            results = [journal.done[k] for k in range(len(batches))]
            plants = _plants(tokenizer, batches, loaded, results, settings, work, say) if settings.plants else []
        finally:
            journal.close()
    differences = [_placed(d, batches[r["batch"]], loaded) for r in results for d in r["differences"]]
    missed = sum(not p["found"] for p in plants)
    totals = {k: sum(r[k] for r in results) for k in ("bytes", "pieces", "tokens", "on_reference")}
    return report | {
        "documents": sum(map(len, batches)) - n_seams,
        "seams": n_seams,
        "compared": totals,
        "ends": "compared" if all(r["ends"] for r in results) else "not compared: the pre-tokenizer drops characters",
        "differences": differences,
        "plants": plants,
        "plants_not_found": missed,
        "seconds": round(time.perf_counter() - begin, 2),
        "status": DIFFERS if differences or missed else HELD,
    }


# -- processes -----------------------------------------------------------------------------------------------------

Work = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterator[Any]]


@dataclasses.dataclass
class _Worker:
    """What a process needs: the tokenizer, the settings, and the folder where asked batches are kept for plants."""

    tokenizer: Tokenizer
    settings: Settings
    store: Path

    def engine(self, name: str) -> Engine:
        return self.tokenizer.core.host if name == "host" else self.tokenizer.core.device

    def asked(self, number: int, texts: list[str]) -> Batch:
        """What the reference says about a batch, from the folder where it has been asked already."""
        file = self.store / f"{number}.batch"
        if file.exists():
            return pickle.loads(file.read_bytes())  # written by this run, in a folder of its own
        made = batch(self.tokenizer.core, texts, self.settings.special_tokens)
        if self.settings.plants:
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
            part.replace(file)
        return made


_worker: _Worker | None = None


def _start(tokenizer: Tokenizer, settings: Settings, store: str) -> None:
    global _worker
    _worker = _Worker(tokenizer, settings, Path(store))


def _here() -> _Worker:
    assert _worker is not None
    return _worker


@contextlib.contextmanager
def _workers(tokenizer: Tokenizer, settings: Settings, store: str) -> Iterator[Work]:
    """A function that maps over tasks in several processes (spawned, never forked), or here if one is enough."""
    count = settings.processes or (1 if "device" in settings.engines else cores.usable())
    if count == 1:
        _start(tokenizer, settings, store)
        yield lambda f, tasks: (f(*task) for task in tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawn, _start, (tokenizer, settings, store)) as pool:

        def work(f: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
            waiting = [pool.submit(f, *task) for task in tasks]
            for future in waiting:
                yield future.result()

        try:
            yield work
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


# -- one batch -----------------------------------------------------------------------------------------------------


def _check(number: int, found: list[documents.Document]) -> dict[str, Any]:
    """Compare the engines with the reference on one batch."""
    worker = _here()
    core, texts = worker.tokenizer.core, [d.text for d in found]
    asked = worker.asked(number, texts)
    differences = []
    for name in worker.settings.engines:
        engine = worker.engine(name)
        difference = first_difference(core, engine, asked)
        if difference is not None:
            differences.append(_described(worker, name, engine, asked, difference))
    return {
        "batch": number,
        "bytes": sum(len(t.encode("utf-8", "surrogatepass")) for t in texts),
        "pieces": len(asked.starts),
        "tokens": len(asked.ids),
        "on_reference": len(texts) - len(asked.which),
        "ends": not bool((core.tables.pretok.out == 2).any()),
        "differences": differences,
    }


def _described(worker: _Worker, name: str, engine: Engine, asked: Batch, difference: Difference) -> dict[str, Any]:
    core, mode = worker.tokenizer.core, worker.settings.special_tokens
    text = asked.texts[difference.text]

    def fails(candidate: str) -> bool:
        try:
            return first_difference(core, engine, batch(core, [candidate], mode)) is not None
        except EngineError:
            return False  # the reference fails on it: another fault

    alone = fails(text)  # a difference may need its neighbours, which would be one more fault
    return {
        "engine": name,
        **difference._asdict(),
        "context": context(core.normalizer.text(text) if core.normalizer.kind != "none" else text, difference.offset),
        "minimised": minimise(text, fails) if alone else None,
    }


def _placed(
    difference: dict[str, Any], found: list[documents.Document], loaded: list[documents.Loaded]
) -> dict[str, Any]:
    """A difference with the file and the byte offset that its document is from."""
    places = [{"file": loaded[n].path, "offset": at} for n, at in found[difference["text"]].places]
    return {**difference, "document": places}


# -- planted faults ------------------------------------------------------------------------------------------------


def _plants(
    tokenizer: Tokenizer,
    batches: list[list[documents.Document]],
    loaded: list[documents.Loaded],
    results: list[dict[str, Any]],
    settings: Settings,
    work: Work,
    say: Progress,
) -> list[dict[str, Any]]:
    """Plant faults, run the campaign on each, and say where each was found."""
    clean = [(r["batch"], batches[r["batch"]]) for r in results if not r["differences"]]
    step = max(1, len(clean) // _SAMPLES)
    say("choosing faults", 0, 0)
    samples = list(work(_sample, clean[::step]))
    chosen = faults.choose(tokenizer.core.tables, samples, settings.plants, settings.seed)
    say("planted faults", 0, len(chosen))
    found = []
    for _ in work(_keep, clean):  # what a resumed campaign did not ask again
        pass
    numbers = [number for number, _ in clean]
    for fault, seen in zip(chosen, work(_hunt, [(f, numbers) for f in chosen]), strict=True):
        where = None
        if seen is not None and seen["text"] is not None:
            document = batches[seen["batch"]][seen["text"]]
            where = [{"file": loaded[number].path, "offset": at} for number, at in document.places]
        found.append(
            {
                "kind": fault.kind,
                "what": fault.what,
                "expected": fault.level,
                "found": seen is not None and seen["level"] == fault.level,
                "seen": seen,
                "document": where,
            }
        )
        say("planted faults", 1, len(chosen))
    return found


def _sample(number: int, found: list[documents.Document]) -> faults.Sample:
    """A batch for which engine and reference agree, as `faults.choose` wants it."""
    worker = _here()
    core = worker.tokenizer.core
    asked = worker.asked(number, [d.text for d in found])
    prepared = asked.encoded
    if not len(prepared.buffer):
        return faults.Sample(prepared.buffer, core.host.encode_buffer(prepared.buffer), np.zeros(0, np.int64))
    return faults.Sample(
        prepared.buffer, core.host.encode_buffer(prepared.buffer), np.asarray(core.host.piece_marks(prepared.buffer))
    )


def _keep(number: int, found: list[documents.Document]) -> None:
    """See to it that the folder has what the reference says about a batch."""
    worker = _here()
    if not (worker.store / f"{number}.batch").exists():
        worker.asked(number, [d.text for d in found])


def _hunt(fault: faults.Fault, numbers: list[int]) -> dict[str, Any] | None:
    """Run the campaign on tables with a fault until it shows; None where it never does."""
    from toktier.host import HostEngine

    worker = _here()
    core = worker.tokenizer.core
    engine = HostEngine(faults.plant(fault, core.tables))
    for number in numbers:
        asked = worker.asked(number, [])
        try:
            difference = first_difference(core, engine, asked)
        except Exception as e:
            return {"batch": number, "level": fault.level, "text": None, "raised": f"{type(e).__name__}: {e}"}
        if difference is not None:
            return {"batch": number, **difference._asdict()}
    return None
