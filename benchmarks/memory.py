"""Memory: what a long day, many tokenizers, many phrases, a big batch and a big file leave behind or need at most.

    python benchmarks/memory.py                     # a quarter hour on two cores
    python benchmarks/memory.py --scale 0.05        # a twentieth of it
    python benchmarks/memory.py --only file --megabytes 1024

Each part runs in a process of its own and prints what it found beside what is allowed; the exit status is 1 where more
was used.  The resident set is read from the operating system, so it has everything in it: Python, NumPy, XLA.

sizes        encodes of random length and batches of random size, "auto" and "device": growth after the first fifth
tokenizers   load, encode, drop: growth of the resident set and of the arrays on the device
phrases      distinct phrases of 40 Han characters: growth of whatever remembers pieces
batch        one call of `encode_batch` on documents of 1 KB: peak, six times the text allowed (and some for threads)
file         `encode_file(...).save(...)` of a generated file: peak beside the output, which goes to disk
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import corpora, machine, print_table

MIB = 1 << 20
TOKENIZER = "o200k_base"


def resident() -> float:
    """MiB of memory in use now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def peak() -> float:
    """MiB of memory in use at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def load(source: str) -> Any:
    """The tokenizer."""
    import toktier

    return toktier.load(source)


def sizes(args: argparse.Namespace) -> dict[str, float]:
    """A day's mix: growth of the resident set after the first fifth of the calls."""
    tok, rng = load(args.tokenizer), random.Random(0)
    text = corpora(None, ["code"])[0].data.decode("utf-8", "ignore")
    calls = max(20, int(5_000 * args.scale))
    tok.warmup()
    first = 0.0
    for k in range(calls):
        engine = "device" if k % 2 else "auto"
        if k % 5:
            length = int(200_000 ** rng.random())
            at = rng.randrange(len(text) - length)
            tok.encode(text[at : at + length], special_tokens="text", engine=engine)
        else:
            docs = [text[at : at + rng.randint(0, 300)] for at in range(0, 300 * rng.randint(1, 300), 300)]
            tok.encode_batch(docs, special_tokens="text", engine=engine)
        if k == calls // 5:
            first = resident()
    return {"calls": calls, "growth_mib": resident() - first, "allowed_mib": 128}


def tokenizers(args: argparse.Namespace) -> dict[str, float]:
    """Load, encode, drop: growth from the second time on."""
    import gc

    import jax

    times, first, arrays = max(4, int(40 * args.scale)), 0.0, 0
    for k in range(times):
        tok = load(args.tokenizer)
        tok.encode("some text " * 100, special_tokens="text", engine="device")
        tok.encode("some text " * 100, special_tokens="text", engine="host")
        del tok
        gc.collect()
        if k == 1:
            first, arrays = resident(), len(jax.live_arrays())
    grown = len(jax.live_arrays()) - arrays
    return {"times": times, "arrays": grown, "growth_mib": resident() - first, "allowed_mib": 128 if not grown else 0}


def phrases(args: argparse.Namespace) -> dict[str, float]:
    """Distinct phrases of 40 Han characters: growth after the first tenth."""
    tok, rng = load(args.tokenizer), random.Random(0)
    count, first = max(1000, int(200_000 * args.scale)), 0.0
    for k in range(count):
        tok.encode("".join(chr(rng.randrange(0x4E00, 0x9FA6)) for _ in range(40)), engine="host")
        if k == count // 10:
            first = resident()
    return {"phrases": count, "growth_mib": resident() - first, "allowed_mib": 64}


def batch(args: argparse.Namespace) -> dict[str, float]:
    """Peak over the text's bytes of one batch of documents of 1 KB."""
    tok = load(args.tokenizer)
    tok.warmup()
    corpus, size = corpora(None, ["code"])[0], max(4 * MIB, int(200e6 * args.scale))
    docs = [corpus.fresh(1024) for _ in range(size // 1024)]
    before = resident()
    tok.encode_batch(docs[:100], special_tokens="text", engine=args.engine)
    tok.encode_batch(docs, special_tokens="text", engine=args.engine)
    grown = peak() - before
    return {"text_mib": size / MIB, "growth_mib": grown, "allowed_mib": max(128.0, 6.0 * size / MIB)}


def file(args: argparse.Namespace) -> dict[str, float]:
    """Peak of the whole process while a large file goes through."""
    tok = load(args.tokenizer)
    megabytes = args.megabytes or max(32, int(1024 * args.scale))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "text", Path(folder) / "ids.npy"
        generate(source, megabytes * MIB)
        before, begin, used = resident(), time.perf_counter(), time.process_time()
        count = tok.encode_file(source, special_tokens="text", engine=args.engine).save(target)
        spent, used = time.perf_counter() - begin, time.process_time() - used
        assert target.stat().st_size == 128 + 4 * count
        top = peak()
    found = {"text_mib": float(megabytes), "ids": float(count), "before_mib": before, "growth_mib": top - before}
    return {**found, "seconds": spent, "process_seconds": used, "peak_mib": top, "allowed_mib": 1.5e9 / MIB - before}


def generate(path: Path, size: int) -> None:
    """A file of so many bytes: code, English and Chinese by turns, lines in ever new orders."""
    texts, left = corpora(None), size
    with path.open("wb") as handle:
        while left > 0:
            for corpus in texts:
                data = corpus.fresh(MIB).encode()[:left]
                handle.write(data.decode("utf-8", "ignore").encode())
                left -= len(data)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "sizes": sizes,
    "tokenizers": tokenizers,
    "phrases": phrases,
    "batch": batch,
    "file": file,
}


def main() -> int:
    """Run each part in a fresh process and print."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", default=TOKENIZER, help="what toktier.load takes")
    p.add_argument("--only", type=lambda s: s.split(","), default=list(PARTS), help="parts, comma separated")
    p.add_argument("--scale", type=float, default=1.0, help="share of the calls and bytes of a full run")
    p.add_argument("--megabytes", type=int, help="MiB of the file  [1024 times the scale]")
    p.add_argument("--engine", default="auto", help="of the batch and the file")
    p.add_argument("--child", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.child:
        print(json.dumps(PARTS[args.child](args)))
        return 0
    print("  ".join(f"{k}: {v}" for k, v in machine().items()), flush=True)
    rows, failed = [], False
    for name in args.only:
        command = [sys.executable, __file__, *sys.argv[1:], "--child", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            rows.append([name, "-", "-", "FAILED", f"exit status {done.returncode}"])
            failed = True
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        used, allowed = found.pop("growth_mib"), found.pop("allowed_mib")
        failed |= used > allowed
        more = ", ".join(f"{k} {v:.4g}" for k, v in found.items())
        rows.append([name, f"{used:.0f}", f"{allowed:.0f}", "holds" if used <= allowed else "TOO MUCH", more])
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print_table(["part", "MiB", "allowed", "", "of"], rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
