"""Speed of `toktier corpus`: megabytes a second of text to token shards, beside the reference library.

    python benchmarks/corpus.py                                      # 500 MB of code, all cores
    python benchmarks/corpus.py --bytes 50M --processes 1,2,4 --tokenizer cl100k_base
    python benchmarks/corpus.py --corpora DIR --ray 1,2,4            # also: on a Ray cluster of so many workers

Both read the same JSONL files and write the same output by the same code: plan, workers, shards, digests, manifest.
Only what encodes a group of documents differs: toktier's `encode_batch`, or the batch call of `tokenizers` or
`tiktoken` in each process, without threads of its own.  They take turns, in another order each round, on text in
another order each round, and their digests must be equal (exit status 1).  MB/s count the
bytes of text, from the start of the run to the written manifest; memory is the most that parent and workers held
together, as far as samples see it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
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


def timed(tok: Tokenizer, inputs: Path, out: Path, chosen: dict[str, Any], encode: Any) -> dict[str, Any]:
    """One run: seconds, peak memory, digest."""
    from toktier import corpus

    shutil.rmtree(out, ignore_errors=True)
    tok = separate(tok)  # what an earlier run has seen is not known to this one
    with Memory() as memory:
        begin = time.perf_counter()
        made = corpus.run(
            tok, [inputs], out, corpus.Settings(special_tokens="text", eos=_eos(tok), **chosen), encode=encode
        )
        seconds = time.perf_counter() - begin
    shutil.rmtree(out)
    return {"seconds": seconds, "peak": memory.peak, **{k: made[k] for k in ("digest", "documents", "tokens")}}


def _eos(tok: Tokenizer) -> str | None:
    return next(iter(tok.special_tokens), None)


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
    cases: dict[str, tuple[dict[str, Any], bool]] = {}
    for n in args.processes:
        cases[f"reference, {n} processes"] = ({"processes": n}, True)
        cases[f"toktier, {n} processes"] = ({"processes": n}, False)
    for n in args.ray:
        cases[f"reference, ray, {n} workers"] = ({"engine": "ray"}, True)
        cases[f"toktier, ray, {n} workers"] = ({"engine": "ray"}, False)
    results: list[dict[str, Any]] = []
    equal = True
    with tempfile.TemporaryDirectory(prefix="toktier-corpus-", dir=args.scratch) as scratch:
        folder = Path(scratch)
        for source in args.tokenizer or ["o200k_base"]:
            tok = toktier.load(source)
            tok.encode("the tables are made, and kept for the workers", engine="host")
            bar = tqdm(total=len(cases) * args.rounds, desc=source, unit=" runs", disable=None, leave=False)
            for k in range(args.rounds):
                inputs = folder / f"in-{k}"
                shutil.rmtree(inputs, ignore_errors=True)
                size = write_inputs(inputs, texts, args.bytes, rng)
                names = list(cases)
                found = {}
                for name in names[k % len(names) :] + names[: k % len(names)]:
                    chosen, by_reference = cases[name]
                    width = int(name.split()[-2])
                    cluster = ray_cluster(width) if "ray" in name else contextlib.nullcontext()
                    with cluster:
                        if "ray" in name:  # its workers are started and warm before the clock is
                            small = folder / "small"
                            if not small.exists():
                                write_inputs(small, texts, 2 * 10**6, random.Random(1))
                            for warm in range(2):
                                out = folder / f"warm-{warm}"
                                timed(
                                    tok,
                                    small,
                                    out,
                                    {**chosen, "shard_bytes": 1 << 18},
                                    native if by_reference else None,
                                )
                        found[name] = timed(tok, inputs, folder / "out", chosen, native if by_reference else None)
                    results.append({"tokenizer": source, "round": k, "case": name, "bytes": size, **found[name]})
                    bar.update()
                equal &= len({r["digest"] for r in found.values()}) == 1
                shutil.rmtree(inputs)
            bar.close()
    print_table(*table(results, cases))
    OUT.mkdir(exist_ok=True)
    (OUT / "corpus.json").write_text(json.dumps({"machine": machine(), "runs": results}, indent=1) + "\n")
    print(f"\n{'all digests are equal' if equal else 'DIGESTS DIFFER'}; runs in {OUT / 'corpus.json'}")
    return 0 if equal else 1


def table(results: list[dict[str, Any]], cases: Any) -> tuple[list[str], list[list[str]]]:
    """MB/s and memory of each case, and what toktier's is of the reference's beside it."""
    rows = []
    for source in dict.fromkeys(r["tokenizer"] for r in results):
        speed = {}
        for name in cases:
            mine = [r for r in results if r["case"] == name and r["tokenizer"] == source]
            speed[name] = median([r["bytes"] / 1e6 / r["seconds"] for r in mine])
            beside = speed.get(name.replace("toktier", "reference"), float("nan"))
            rows.append(
                [
                    source,
                    name,
                    f"{mine[0]['bytes'] / 1e6:.0f} MB",
                    f"{mine[0]['documents']}",
                    f"{mine[0]['tokens'] / 1e6:.1f} M",
                    f"{median([r['seconds'] for r in mine]):.1f} s",
                    f"{speed[name]:.1f}",
                    f"{speed[name] / beside:.2f} x" if name.startswith("toktier") else "-",
                    f"{max(r['peak'] for r in mine) / 1e9:.2f} GB",
                ]
            )
    return ["tokenizer", "run", "text", "documents", "tokens", "time", "MB/s", "of the reference", "peak memory"], rows


def size_of(text: str) -> int:
    """Bytes of such as 50M."""
    return int(float(text[:-1]) * _UNITS[text[-1]]) if text[-1] in _UNITS else int(text)


def numbers(text: str) -> list[int]:
    """Integers, comma separated."""
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
