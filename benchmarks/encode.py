"""Speed of a fresh encode: the reference, tiktoken where it can, and toktier's engines, taking turns in one run.

    python benchmarks/encode.py                                      # embedded o200k_base, texts made on the spot
    python benchmarks/encode.py --tokenizer PATH/tokenizer.json --corpora DIR --json out.json

Columns: the reference's time, then how many times faster each other engine is.  *fresh*: each round a text that no
engine has seen; *steady*: the same text again and again.  *array* and *list*: how ids are delivered (an engine that
natively gives the other kind pays for the conversion).  Ids are compared for each size: an engine whose ids
differ is marked WRONG, and if it is toktier's the exit status is 1.  Ratios hold between machines better than
milliseconds do.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import SIZES, Call, Corpus, corpora, machine, median, print_table, seconds, separate, turns
from peers_tiktoken import tiktoken_twin

ENGINES = ["reference", "tiktoken", "host", "device", "auto"]


def engines(source: str, wanted: list[str], delivery: str) -> dict[str, Call]:
    """Name -> call that gives the ids of a text as an int array or a list."""
    import toktier

    tok = toktier.load(source)
    special = "parse" if tok.spec.reference == "tokenizers" else "text"
    found: dict[str, Call] = {}
    twin = tiktoken_twin(tok)

    def own(engine: str) -> Call:
        one = separate(tok)

        def call(text: str) -> Any:
            ids = one.encode(text, engine=engine, special_tokens=special)
            return as_delivered(ids, delivery)

        return call

    for name in wanted:
        if name != "tiktoken":
            found[name] = own(name)
        elif twin is not None and delivery == "array":
            found[name] = twin.encode_to_numpy
        elif twin is not None:
            found[name] = twin.encode_ordinary
    return found


def as_delivered(ids: Any, delivery: str) -> Any:
    """The ids as a list or as an array."""
    if delivery == "array":
        return np.asarray(ids)
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def equal(a: Any, b: Any) -> bool:
    """Are two id sequences the same?"""
    return np.array_equal(np.asarray(a), np.asarray(b))


def measure(calls: dict[str, Call], corpus: Corpus, size: int, rounds: int) -> dict[str, Any]:
    """One row: seconds of each engine, fresh and steady, and which were wrong."""
    check = corpus.fresh(size)
    first, wrong = next(iter(calls)), []
    want = calls[first](check)
    for name, call in calls.items():  # also the warm-up of this size
        if name != first and not equal(call(check), want):
            wrong.append(name)
    fresh = turns(calls, iter(lambda: corpus.fresh(size), None), rounds)
    steady = turns(calls, itertools.repeat(check), rounds)
    return {
        "fresh": {k: median(v) for k, v in fresh.items()},
        "steady": {k: median(v) for k, v in steady.items()},
        "spread": {k: [min(v), max(v)] for k, v in fresh.items()},
        "wrong": wrong,
    }


def rows(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All measurements of the table."""
    for source in args.tokenizer:
        for delivery in args.delivery:
            calls = engines(source, args.engines, delivery)
            for corpus in corpora(args.corpora, args.only):
                for label in args.sizes:
                    size = SIZES[label]
                    rounds = args.rounds if size <= 1 << 20 else max(3, args.rounds // 2)
                    yield {
                        "tokenizer": Path(source).parent.name if "/" in source else source,
                        "text": corpus.name,
                        "size": label,
                        "delivery": delivery,
                        **measure(calls, corpus, size, rounds),
                    }


def shown(row: dict[str, Any], names: list[str]) -> list[str]:
    """One row as table cells."""
    cells = [row["tokenizer"], row["text"], row["size"], row["delivery"]]
    base = names[0]
    cells += [seconds(row["fresh"][base])]
    for kind in ("fresh", "steady"):
        for name in names[1:]:
            ratio = row[kind][base] / row[kind][name] if name in row[kind] else float("nan")
            cells.append("-" if ratio != ratio else "WRONG" if name in row["wrong"] else f"{ratio:.2f} x")
    return cells


def child(task: str, source: str, engine: str, size: int) -> dict[str, float]:
    """In a process of its own: seconds of load and of the first two calls, or the growth of the peak memory."""
    corpus = corpora(None, ["english"])[0]
    begin = time.perf_counter()
    import toktier

    imported = time.perf_counter()
    tok = toktier.load(source)
    loaded = time.perf_counter()
    special = "parse" if tok.spec.reference == "tokenizers" else "text"
    texts = [corpus.fresh(size) for _ in range(3)]
    if task == "memory":
        tok.encode("warm", engine=engine, special_tokens=special)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        tok.encode(texts[0], engine=engine, special_tokens=special)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {"before_mib": before / 1024, "peak_mib": after / 1024}
    marks = [time.perf_counter()]
    for text in texts:
        tok.encode(text, engine=engine, special_tokens=special)
        marks.append(time.perf_counter())
    first, second, third = np.diff(marks).tolist()
    return {"import": imported - begin, "load": loaded - imported, "first": first, "second": second, "third": third}


def in_child(task: str, source: str, engine: str, size: int) -> dict[str, float]:
    """Run `child` in a fresh process."""
    command = [sys.executable, __file__, "--child", task, source, engine, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": float(done.returncode)}
    return json.loads(done.stdout.splitlines()[-1])


def first_calls(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Import, load and first calls, and peak memory, each in a fresh process."""
    found = []
    for source, engine in itertools.product(args.tokenizer, [e for e in args.engines if e != "tiktoken"]):
        row: dict[str, Any] = {"tokenizer": source, "engine": engine}
        row["first"] = in_child("first", source, engine, 1 << 14)
        row["memory"] = in_child("memory", source, engine, 1 << 22)
        found.append(row)
    return found


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", action="append", help="what toktier.load takes; may be given again  [o200k_base]")
    p.add_argument("--corpora", help="folder of .txt files  [texts made from the Python installation]")
    p.add_argument("--only", type=lambda s: s.split(","), help="names of texts, comma separated")
    p.add_argument("--sizes", type=lambda s: s.split(","), default=["1K", "16K", "64K", "256K", "1M", "4M", "16M"])
    p.add_argument(
        "--engines", type=lambda s: s.split(","), default=["reference", "tiktoken", "host", "device", "auto"]
    )
    p.add_argument("--delivery", type=lambda s: s.split(","), default=["array"], help="array, list or array,list")
    p.add_argument("--rounds", type=int, default=6, help="fresh texts for each cell (half as many above 1M)")
    p.add_argument("--skip-first", action="store_true", help="leave out first calls and memory (fresh processes)")
    p.add_argument("--json", help="also write everything measured to this file")
    p.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = p.parse_args()
    args.tokenizer = args.tokenizer or ["o200k_base"]
    return args


def main() -> int:
    """Run, print, and say whether all engines were exact."""
    args = parse_arguments()
    if args.child:
        task, source, engine, size = args.child
        print(json.dumps(child(task, source, engine, int(size))))
        return 0
    print("  ".join(f"{k}: {v}" for k, v in machine().items()), flush=True)
    result: dict[str, Any] = {"machine": machine(), "arguments": vars(args), "rows": []}
    names = args.engines
    header = ["tokenizer", "text", "size", "as", names[0]]
    header += [f"{n} {kind}" for kind in ("fresh", "steady") for n in names[1:]]
    print("\t".join(header), file=sys.stderr, flush=True)
    for row in rows(args):
        result["rows"].append(row)
        print("\t".join(shown(row, names)), file=sys.stderr, flush=True)
    print_table(header, [shown(row, names) for row in result["rows"]])
    if not args.skip_first:
        result["first"] = first_calls(args)
        print("\nA fresh process: import, load, then three fresh texts of 16 KB; peak memory of one text of 4 MB.")
        cells = []
        for r in result["first"]:
            first, memory = r["first"], r["memory"]
            times = [seconds(first.get(k, float("nan"))) for k in ("import", "load", "first", "second", "third")]
            before, peak = memory.get("before_mib", float("nan")), memory.get("peak_mib", float("nan"))
            cells.append([r["tokenizer"], r["engine"], *times, f"{before:.0f} + {peak - before:.0f} MiB"])
        print_table(["tokenizer", "engine", "import", "load", "first", "second", "third", "memory"], cells)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1, default=str))
    return 1 if any(set(row["wrong"]) - {"tiktoken"} for row in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
