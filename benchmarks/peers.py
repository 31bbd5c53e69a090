"""toktier beside other tokenizers: the same fresh slices, taking turns, exactness beside speed, a table and a plot.

    pip install '.[bench]'
    python benchmarks/peers.py --plot peers.png
    python benchmarks/peers.py --tokenizer PATH/tokenizer.json --corpora DIR --only english_prose,chinese --sizes 1K,1M

Each cell is MB/s of the median round, WRONG where any id of any slice differed from the reference's (such an engine is
drawn with hollow marks).  Every engine delivers an array (or, with `--delivery list`, a list), by whichever of its
calls does that best.  A peer that is not installed, or whose API cannot take the tokenizer, is listed with the reason.
The last table has what toktier's best engine loses to the fastest exact peer.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import SIZES, Corpus, corpora, machine, median, print_table
from _peers import OURS, Calls, all_calls
from _texts import prose

MORE = {"russian": "cyrillic", "japanese": "japanese"}  # generated, where no folder of texts is given
PLOT_COLUMNS = 3


def five_texts(folder: str | None, only: list[str] | None) -> list[Corpus]:
    """The texts of a folder, or three that every Python has and two that are generated."""
    found = corpora(folder, only)
    if folder is None:
        made = {name: script for name, script in MORE.items() if not only or name in only}
        found += [Corpus(name, prose(script, 4 << 20).encode()) for name, script in made.items()]
    return found


def measure(
    calls: dict[str, Callable[[str], Any]], corpus: Corpus, size: int, rounds: int, limit: float
) -> tuple[dict[str, list[float]], set[str], float]:
    """Seconds of each engine on fresh slices, which of them were wrong, and bytes of a slice.

    An engine that took longer than `limit` seconds sits out the rest of the rounds.
    """
    names, wrong, n_bytes = list(calls), set[str](), 0
    times: dict[str, list[float]] = {name: [] for name in names}
    for call in calls.values():
        call(corpus.fresh(size))  # buffers, caches and compilation
    for k in range(rounds):
        text = corpus.fresh(size)
        n_bytes += len(text.encode())
        results = {}
        for name in names[k % len(names) :] + names[: k % len(names)]:
            if times[name] and name != "reference" and max(times[name]) > limit:
                continue
            gc.collect()
            begin = time.perf_counter()
            results[name] = calls[name](text)
            times[name].append(time.perf_counter() - begin)
        want = np.asarray(results.pop("reference"))
        wrong |= {name for name, got in results.items() if not np.array_equal(np.asarray(got), want)}
    return times, wrong, n_bytes / rounds


def rows_of(tok: Any, label: str, calls: dict[str, Calls], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Everything measured for one tokenizer."""
    chosen = {name: getattr(c, args.delivery) for name, c in calls.items()}
    rows = []
    for corpus in five_texts(args.corpora, args.only):
        for size in args.sizes:
            rounds = args.rounds if SIZES[size] <= 1 << 20 else max(2, args.rounds // 2)
            times, wrong, n_bytes = measure(chosen, corpus, SIZES[size], rounds, args.limit)
            speed = {name: n_bytes / median(t) / 1e6 for name, t in times.items()}
            rows.append({"tokenizer": label, "text": corpus.name, "size": size, "bytes": n_bytes})
            rows[-1].update(speed=speed, wrong=sorted(wrong))
            print(f"{label}, {corpus.name}, {size}", file=sys.stderr, flush=True)
    return rows


def losses(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Where an exact peer is faster than the best of our engines."""
    lost = []
    for row in rows:
        exact = {name: v for name, v in row["speed"].items() if name not in row["wrong"] and v == v}
        ours = {name: v for name, v in exact.items() if name in OURS}
        peers = {name: v for name, v in exact.items() if name not in OURS}
        if ours and peers and max(peers.values()) > max(ours.values()):
            best, mine = max(peers, key=peers.__getitem__), max(ours, key=ours.__getitem__)
            ratio = peers[best] / ours[mine]
            lost.append([row["tokenizer"], row["text"], row["size"], best, mine, f"{ratio:.2f} x"])
    return lost


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Speed by size, one panel for each tokenizer and text."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((row["tokenizer"], row["text"]) for row in rows))
    columns = min(PLOT_COLUMNS, len(panels))
    height = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(height, columns, figsize=(5 * columns, 3.6 * height), squeeze=False, sharey=True)
    names = list(dict.fromkeys(name for row in rows for name in row["speed"]))
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        mine = [row for row in rows if (row["tokenizer"], row["text"]) == panel]
        for k, name in enumerate(names):
            points = [(row["bytes"], row["speed"].get(name, float("nan"))) for row in mine]
            exact = not any(name in row["wrong"] for row in mine)
            width = 2.2 if name in OURS else 1.0
            fill = {} if exact else {"markerfacecolor": "none", "linestyle": ":"}
            axis.plot(*zip(*points, strict=True), marker="o", color=f"C{k}", linewidth=width, label=name, **fill)
        axis.set(xscale="log", yscale="log", title=", ".join(panel), xlabel="bytes of text", ylabel="MB/s")
        axis.grid(alpha=0.3)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(5, len(labels)), frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)


def main() -> int:
    """Run, print, and say whether our engines were exact."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokenizer", action="append", help="what toktier.load takes; may be given again  [o200k_base]")
    p.add_argument("--corpora", help="folder of .txt files  [texts made on the spot]")
    p.add_argument("--only", type=lambda s: s.split(","), help="names of texts, comma separated")
    p.add_argument("--sizes", type=lambda s: s.split(","), default=["1K", "16K", "64K", "256K", "1M", "4M"])
    p.add_argument("--engines", type=lambda s: s.split(","), help="peers and engines beside the reference  [all]")
    p.add_argument("--delivery", choices=["array", "list"], default="array")
    p.add_argument("--rounds", type=int, default=7, help="fresh slices for each cell (half as many above 1M)")
    p.add_argument("--limit", type=float, default=20, help="seconds after which an engine sits out a cell")
    p.add_argument("--plot", metavar="FILE", help="also draw this .png, .svg or .pdf")
    p.add_argument("--json", metavar="FILE", help="also write everything measured to this file")
    args = p.parse_args()
    print("  ".join(f"{k}: {v}" for k, v in machine().items()), flush=True)
    import toktier

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for source in args.tokenizer or ["o200k_base"]:
            tok = toktier.load(source)
            label = Path(source).parent.name if "/" in source else source
            calls, missing = all_calls(tok, Path(folder), args.engines)
            for name, why in missing.items():
                print(f"{label}: without {name}: {why}", flush=True)
            rows += rows_of(tok, label, calls, args)
    names = list(dict.fromkeys(name for row in rows for name in row["speed"]))
    cells = []
    for row in rows:
        speeds = ["WRONG" if n in row["wrong"] else f"{row['speed'].get(n, float('nan')):.3g}" for n in names]
        cells.append([row["tokenizer"], row["text"], row["size"], *("-" if s == "nan" else s for s in speeds)])
    print(f"\nMB/s, ids as {args.delivery}")
    print_table(["tokenizer", "text", "size", *names], cells)
    if lost := losses(rows):
        print("\nWhere an exact peer is faster than our best")
        print_table(["tokenizer", "text", "size", "peer", "ours", "faster by"], lost)
    if args.plot:
        plot(rows, args.plot)
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1, default=str))
    return 1 if any(set(row["wrong"]) & set(OURS) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
