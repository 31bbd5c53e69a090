"""Speed of a batch: many documents in one call, against `encode_batch` of the reference, which uses all cores.

    python benchmarks/batch.py                                       # 10,000 documents of 200 to 2,000 characters
    python benchmarks/batch.py --tokenizer PATH/tokenizer.json --corpora DIR --documents 1000 --shares

Each engine gets a fresh batch in turn, in another order each round, and delivers what it delivers natively: the
reference a list of encodings (or of lists), toktier one flat array and its offsets.  Ids are compared first; the exit
status is 1 if they differ.  Besides wall time the table has process time (all threads), which other work on the machine
disturbs less.  `--shares` adds where the time of a device batch goes: the steps before the engine, the engine, the
steps behind it.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import Corpus, corpora, machine, median, print_table, seconds, separate

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

BatchCall = Callable[[list[str]], Any]


def batches_of(texts: list[Corpus], count: int, shortest: int, longest: int) -> Iterator[list[str]]:
    """Batches of documents of a length drawn evenly, from the texts in turn, none handed out before."""
    rng = random.Random(0)
    while True:
        yield [texts[k % len(texts)].fresh(rng.randint(shortest, longest)) for k in range(count)]


def reference_batch(tok: Tokenizer) -> tuple[BatchCall, Callable[[Any], list[list[int]]]]:
    """The reference's own batch call, and what makes lists of ids of its result."""
    reference: Any = tok.core.reference
    if tok.spec.reference == "tiktoken":
        return reference.native.encode_ordinary_batch, list
    return (
        lambda docs: reference.native.encode_batch(docs, add_special_tokens=False),
        lambda found: [encoding.ids for encoding in found],
    )


def engines(tok: Tokenizer, wanted: list[str]) -> dict[str, BatchCall]:
    """Name -> batch call."""
    special = "parse" if tok.spec.reference == "tokenizers" else "text"

    def own(engine: str) -> BatchCall:
        one = separate(tok)
        one.warmup()
        return lambda docs: one.encode_batch(docs, engine=engine, special_tokens=special)

    return {name: own(name) for name in wanted}


def turns(calls: dict[str, BatchCall], batches: Iterator[list[str]], rounds: int) -> dict[str, list[tuple[float, ...]]]:
    """(wall, process) seconds of each call on each batch."""
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in calls}
    names = list(calls)
    for k in range(rounds):
        docs = next(batches)
        for name in names[k % len(names) :] + names[: k % len(names)]:
            gc.collect()
            wall, process = time.perf_counter(), time.process_time()
            calls[name](docs)
            times[name].append((time.perf_counter() - wall, time.process_time() - process))
    return times


def shares(tok: Tokenizer, docs: list[str]) -> list[str]:
    """Process time of the steps of one device batch."""
    from toktier import pipeline

    mode = "parse" if tok.spec.reference == "tokenizers" else "text"
    marks = [time.process_time()]
    prepared = tok.core.pipeline.prepare(docs, mode)
    marks.append(time.process_time())
    encoded = tok.core.device.encode_buffer(prepared.buffer)
    marks.append(time.process_time())
    pipeline.finish_rows(prepared, encoded)
    marks.append(time.process_time())
    return [seconds(s) for s in np.diff(marks).tolist()]


def main() -> int:
    """Run, print, and say whether all engines were exact."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", action="append", help="what toktier.load takes; may be given again  [o200k_base]")
    p.add_argument("--corpora", help="folder of .txt files  [texts made from the Python installation]")
    p.add_argument("--only", type=lambda s: s.split(","), help="names of texts, comma separated")
    p.add_argument("--documents", type=int, default=10_000)
    p.add_argument("--lengths", type=lambda s: tuple(map(int, s.split(","))), default=(200, 2000), help="of documents")
    p.add_argument("--engines", type=lambda s: s.split(","), default=["device", "auto", "host"])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--shares", action="store_true", help="where the time of a device batch goes")
    args = p.parse_args()
    print("  ".join(f"{k}: {v}" for k, v in machine().items()), flush=True)
    import toktier

    exact, table, parts = True, [], []
    for source in args.tokenizer or ["o200k_base"]:
        tok = toktier.load(source)
        tok.warmup()
        native, ids_of = reference_batch(tok)
        ours = engines(tok, args.engines)
        texts = corpora(args.corpora, args.only)
        for chosen in [[t] for t in texts] + ([texts] if len(texts) > 1 else []):
            batches = batches_of(chosen, args.documents, *args.lengths)
            calls = {"reference": native, **ours}
            check = next(batches)
            want = ids_of(native(check))
            wrong = [name for name in args.engines if calls[name](check).to_lists() != want]
            exact &= not wrong
            times = turns(calls, batches, args.rounds)
            wall = {k: median([t[0] for t in v]) for k, v in times.items()}
            process = {k: median([t[1] for t in v]) for k, v in times.items()}
            name = Path(source).parent.name if "/" in source else source
            kind = chosen[0].name if len(chosen) == 1 else "mixed"
            cells = [name, kind, f"{sum(len(d.encode()) for d in check) / 1e6:.1f} MB", seconds(wall["reference"])]
            cells += [f"{wall['reference'] / wall[e]:.2f} x" if e not in wrong else "WRONG" for e in args.engines]
            cells += [f"{process['reference'] / process[e]:.2f} x" for e in args.engines]
            table.append(cells)
            if args.shares:
                parts.append([name, kind, *shares(tok, check)])
    header = ["tokenizer", "text", "batch", "reference", *args.engines, *(f"{e}, process time" for e in args.engines)]
    print_table(header, table)
    if parts:
        print("\nProcess time of a device batch by step")
        print_table(["tokenizer", "text", "before", "engine", "behind"], parts)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
