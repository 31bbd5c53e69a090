"""Hard inputs at full size: exact, and how time and memory grow.

    python benchmarks/hard.py                                   every input, embedded o200k_base
    python benchmarks/hard.py -t ./model/tokenizer.json --engine host --only letter,base64

Each engine and input runs in a process of its own: a small text first (and for the device both sizes, since those
compile), then the time for a quarter and for the whole, once each.  `ratio` is whole / quarter: 4 is linear.  Memory is
the peak of the process above what it held before the first of the two.  `exact`: the ids are the reference's; a dash
where the reference fails or is given up on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import machine, print_table, seconds

from toktier.testing.hard import FULL, make

ENGINES = ("host", "device", "reference")
GROWTH = 6.0  # of the time, for four times the input


def measure(source: str, engine: str, name: str, size: int) -> dict[str, Any]:
    """Times, memory and digest of the ids, in this process."""
    import toktier

    tokenizer = toktier.load(source)
    quarter, whole = make(name, size // 4), make(name, size)
    # A text of another kind: what is remembered of it says nothing about the two.
    tokenizer.encode("It costs 12 $.\n\n" * 20, engine=engine, special_tokens="text")
    if engine == "device":
        for text in (quarter, whole):  # compiles, and remembers nothing of the text
            tokenizer.encode(text, engine=engine, special_tokens="text")
    before = _peak(reset=True)
    times = []
    for text in (quarter, whole):
        begin = time.perf_counter()
        ids = tokenizer.encode(text, engine=engine, special_tokens="text")
        times.append(time.perf_counter() - begin)
    return {
        "quarter": times[0],
        "whole": times[1],
        "ratio": times[1] / times[0],
        "peak": _peak() - before,
        "tokens": len(ids),
        "digest": hashlib.sha256(np.ascontiguousarray(ids, "<i4").tobytes()).hexdigest(),
    }


def _peak(reset: bool = False) -> int:
    """Peak bytes resident; with `reset` the peak begins anew and what is held now is returned (Linux)."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(fields["VmRSS" if reset else "VmHWM"].split()[0]) * 1024


def _run(pipe: Any, *arguments: Any) -> None:
    try:
        pipe.send(measure(*arguments))
    except BaseException as e:  # a panic of a native library is no Exception
        pipe.send({"failed": f"{type(e).__name__}: {str(e)[:60]}"})


def measured(limit: float, *arguments: Any) -> dict[str, Any]:
    """`measure` in a process of its own, ended after `limit` seconds."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(False)
    process = spawn.Process(target=_run, args=(there, *arguments))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(limit) else {"failed": f"no answer in {limit:.0f} s"}
    except EOFError:
        return {"failed": "the process ended"}
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Print one row an engine and input; exit status 1 where ids differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-t", "--tokenizer", default="o200k_base")
    parser.add_argument("--engine", default=",".join(ENGINES), help="comma-separated")
    parser.add_argument("--only", help="comma-separated names of inputs: " + ", ".join(FULL))
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one engine and input")
    parser.add_argument("--json", metavar="FILE", help="write the figures too")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(FULL)
    rows, records, wrong = [], [], 0
    for name in names:
        size = int(FULL[name] * options.scale)
        found = {e: measured(options.limit, options.tokenizer, e, name, size) for e in options.engine.split(",")}
        truth = found.get("reference", {}).get("digest")
        for engine, result in found.items():
            records.append({"input": name, "bytes": size, "engine": engine, **result})
            if "failed" in result:
                rows.append([name, str(size), engine, "-", "-", "-", "-", result["failed"]])
                continue
            exact = "-" if truth is None else "yes" if result["digest"] == truth else "NO"
            wrong += exact == "NO"
            ratio = f"{result['ratio']:.1f}" + (" !" if result["ratio"] > GROWTH else "")
            peak = f"{result['peak'] / 2**20:.0f} MiB"
            rows.append(
                [name, str(size), engine, seconds(result["quarter"]), seconds(result["whole"]), ratio, peak, exact]
            )
        print(f"{name}: done", file=sys.stderr)
    print_table(["input", "bytes", "engine", "a quarter", "whole", "ratio", "peak", "exact"], rows)
    print(", ".join(f"{k} {v}" for k, v in machine().items()))
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), "results": records}, indent=1))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
