"""Speed of `toktier corpus`: megabytes a second of text to token shards, beside the reference library.

    python benchmarks/corpus.py                                      # 500 MB of code, all cores
    python benchmarks/corpus.py --bytes 50M --processes 1,2,4 --tokenizer cl100k_base
    python benchmarks/corpus.py --corpora DIR --ray 1,2,4            # also: on a Ray cluster of so many workers

Both read the same JSONL files and write the same output by the same code: plan, workers, shards, digests, manifest.
Only what encodes a group of documents differs: toktier's `encode_batch`, or the batch call of `tokenizers` or
`tiktoken` in each process, without threads of its own.  They take turns, in another order each round, on text in
another order each round, and their digests must be equal (exit status 1).  MB/s count the
bytes of text, from the start of the run to the written manifest; memory is the most that parent and workers held
together, as far as samples see it.  MB a processor second says the same where other work disturbs the clock.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import random
import resource
import shutil
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import machine, median, print_table, separate
from tqdm import tqdm

if TYPE_CHECKING:
    from toktier.batch import Batch
    from toktier.tokenizer import Tokenizer

OUT = Path(__file__).resolve().parent / "out"
_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}


def native(tok: Tokenizer) -> Callable[[list[str]], Batch]:
    """The reference's own batch call as an encoder; special tokens in the text are text, as in the runs beside it."""
    from toktier.batch import Batch

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    reference: Any = tok.core.reference
    if tok.spec.reference == "tiktoken":

        def ids_of(texts: list[str]) -> list[np.ndarray]:
            engine = reference.native
            return [engine.encode_to_numpy(t, allowed_special=set(), disallowed_special=()) for t in texts]
    else:
        engine = reference._as_text

        def ids_of(texts: list[str]) -> list[np.ndarray]:
            found = engine.encode_batch_fast(texts, add_special_tokens=False)
            return [np.array(encoding.ids, np.int32) for encoding in found]

    def encode(texts: list[str]) -> Batch:
        rows = ids_of(texts)
        ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return Batch(np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32, copy=False), ends)

    return encode


def documents(corpora: str | None) -> list[str]:
    """Texts of up to some kilobytes: sources of the standard library, or a folder's .txt files, cut at blank lines."""
    root = Path(corpora) if corpora else Path(sysconfig.get_path("stdlib"))
    files = sorted(root.rglob("*.txt" if corpora else "*.py"))
    found = []
    for file in files:
        text = file.read_bytes().decode("utf-8", "ignore")
        while text:
            cut = text.rfind("\n\n", 1000, 6000) + 2 if len(text) > 6000 else len(text)
            cut = cut if cut > 1 else 6000
            found.append(text[:cut])
            text = text[cut:]
    return found


def write_inputs(folder: Path, texts: list[str], size: int, rng: random.Random) -> int:
    """JSONL files with about `size` bytes of text, in shuffled order, and once more where that is not enough.

    A document that comes again has its lines in another order.  Returns the bytes of text.
    """
    folder.mkdir(parents=True)
    total = turn = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((folder / f"{k}.jsonl").open("w", encoding="utf-8")) for k in range(4)]
        while total < size:
            order = list(texts)
            rng.shuffle(order)
            for k, text in enumerate(order):
                if turn:
                    lines = text.splitlines(keepends=True)
                    rng.shuffle(lines)
                    text = "".join(lines)
                files[k % 4].write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                total += len(text.encode())
                if total >= size:
                    break
            turn += 1
    return total


class Memory:
    """The most resident memory of this process and those below it, sampled five times a second, in bytes."""

    def __init__(self) -> None:
        self.peak = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.2):
            self.peak = max(self.peak, sum(_resident(pid) for pid in _family(os.getpid())))


def _family(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to do it."""

    by_reference: bool
    workers: int
    on_ray: bool

    def __str__(self) -> str:
        who = "reference" if self.by_reference else "toktier"
        return f"{who}, {self.workers} {'Ray workers' if self.on_ray else 'processes'}"

    def run(self, tok: Tokenizer, inputs: Path, folder: Path, size: int) -> dict[str, Any]:
        """Seconds, processor seconds (not on Ray), peak memory and digest of a run over `size` bytes of text."""
        if not self.on_ray:
            return self._timed(tok, inputs, folder / "out", size, {"processes": self.workers})
        small = folder / "small"
        if not small.exists():
            write_inputs(small, documents(None), 2 * 10**6, random.Random(1))
        with ray_cluster(self.workers):
            for _ in range(2):  # its workers are started and warm before the clock is
                self._timed(tok, small, folder / "out", 2 * 10**6, {"engine": "ray"})
            return self._timed(tok, inputs, folder / "out", size, {"engine": "ray"}) | {"processor": float("nan")}

    def _timed(self, tok: Tokenizer, inputs: Path, out: Path, size: int, chosen: dict[str, Any]) -> dict[str, Any]:
        from toktier import corpus

        settings = corpus.Settings(
            special_tokens="text",
            eos=next(iter(tok.special_tokens), None),
            shard_bytes=max(1 << 16, min(32 << 20, size // 32)),
            **chosen,
        )
        tok = separate(tok)  # what an earlier run has seen is not known to this one
        with Memory() as memory:
            begin, processor = time.perf_counter(), _processor()
            made = corpus.run(tok, [inputs], out, settings, encode=native if self.by_reference else None)
            seconds, processor = time.perf_counter() - begin, _processor() - processor
        shutil.rmtree(out)
        kept = {k: made[k] for k in ("digest", "documents", "tokens")}
        return {"seconds": seconds, "processor": processor, "peak": memory.peak, **kept}


def _processor() -> float:
    """Processor seconds of this process and of those below it that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


@contextlib.contextmanager
def ray_cluster(workers: int) -> Iterator[None]:
    """A Ray cluster of this machine with so many cores."""
    import ray

    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, str(Path(here).parent), os.environ.get("PYTHONPATH", "")])
    for left in (2, 1, 0):
        try:
            ray.init(
                address="local",
                num_cpus=workers,
                object_store_memory=128 << 20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            break
        except Exception:  # Ray allows itself half a minute, which a busy machine may not grant
            ray.shutdown()
            if not left:
                raise
    try:
        yield
    finally:
        ray.shutdown()


def main() -> int:
    """Run, print, and say whether all outputs were equal."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", action="append", help="what toktier.load takes; may be given again  [o200k_base]")
    p.add_argument("--corpora", help="folder of .txt files  [the standard library's sources]")
    p.add_argument("--bytes", type=size_of, default=500 * 10**6, help="of text, such as 50M  [500M]")
    p.add_argument("--processes", type=numbers, default=[os.cpu_count() or 1], help="comma separated  [one a core]")
    p.add_argument("--ray", type=numbers, default=[], help="workers of a Ray cluster, comma separated")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--scratch", help="folder for inputs and outputs  [the system's temporary one]")
    args = p.parse_args()
    print("  ".join(f"{k}: {v}" for k, v in machine().items()), flush=True)
    import toktier

    texts, rng = documents(args.corpora), random.Random(0)
    widths = [(n, False) for n in args.processes] + [(n, True) for n in args.ray]
    cases = [Case(reference, n, on_ray) for n, on_ray in widths for reference in (True, False)]
    results: list[dict[str, Any]] = []
    equal = True
    with tempfile.TemporaryDirectory(prefix="toktier-corpus-", dir=args.scratch) as scratch:
        folder = Path(scratch)
        for source in args.tokenizer or ["o200k_base"]:
            tok = toktier.load(source)
            tok.encode("the tables are made, and kept for the workers", engine="host")
            bar = tqdm(total=len(cases) * args.rounds, desc=source, unit=" runs", disable=None, leave=False)
            for k in range(args.rounds):
                size = write_inputs(folder / "in", texts, args.bytes, rng)
                digests = set()
                for case in cases[k % len(cases) :] + cases[: k % len(cases)]:
                    found = case.run(tok, folder / "in", folder, size)
                    digests.add(found["digest"])
                    results.append({"tokenizer": source, "round": k, "case": str(case), "bytes": size, **found})
                    bar.update()
                equal &= len(digests) == 1
                shutil.rmtree(folder / "in")
            bar.close()
    print_table(*table(results))
    OUT.mkdir(exist_ok=True)
    (OUT / "corpus.json").write_text(json.dumps({"machine": machine(), "runs": results}, indent=1) + "\n")
    print(f"\n{'all digests are equal' if equal else 'DIGESTS DIFFER'}; runs in {OUT / 'corpus.json'}")
    return 0 if equal else 1


def table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Speed and memory of each case, and toktier's speed in parts of the reference's beside it."""
    rows = []
    for source, name in dict.fromkeys((r["tokenizer"], r["case"]) for r in results):

        def per_second(name: str, of: str, source: str = source) -> float:
            mine = [r for r in results if (r["tokenizer"], r["case"]) == (source, name)]
            return median([r["bytes"] / 1e6 / r[of] for r in mine])

        mine = [r for r in results if (r["tokenizer"], r["case"]) == (source, name)]
        ours, beside = name.startswith("toktier"), name.replace("toktier", "reference")
        busy = per_second(name, "processor")
        rows.append(
            [
                Path(source).parent.name if "/" in source else source,
                name,
                f"{mine[0]['bytes'] / 1e6:.0f} MB",
                f"{mine[0]['documents']}",
                f"{mine[0]['tokens'] / 1e6:.1f} M",
                f"{median([r['seconds'] for r in mine]):.1f} s",
                f"{per_second(name, 'seconds'):.1f}",
                f"{per_second(name, 'seconds') / per_second(beside, 'seconds'):.2f} x" if ours else "-",
                f"{busy:.1f}" if busy == busy else "-",
                f"{busy / per_second(beside, 'processor'):.2f} x" if ours and busy == busy else "-",
                f"{max(r['peak'] for r in mine) / 1e9:.2f} GB",
            ]
        )
    header = ["tokenizer", "run", "text", "documents", "tokens", "time", "MB/s", "of the reference"]
    return [*header, "MB a processor second", "of the reference", "peak memory"], rows


def size_of(text: str) -> int:
    """Bytes of such as 50M."""
    return int(float(text[:-1]) * _UNITS[text[-1]]) if text[-1] in _UNITS else int(text)


def numbers(text: str) -> list[int]:
    """Integers, comma separated."""
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
