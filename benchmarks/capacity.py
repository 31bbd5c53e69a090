"""Measured service times carried to many cores, accelerators and sessions, by simulation.

    python benchmarks/tier.py                                        # measures, on this machine
    python benchmarks/capacity.py benchmarks/out/tier.json           # carries that on
    python benchmarks/capacity.py tier.json --device gpu.json        # whole contexts on an accelerator, measured there

check  the simulation beside the measured runs: P50, P99 and how busy the workers were.
fleet  cores for so many inference GPUs: by the rate alone (mean work), and so that P99 stays within a target.
kept   how long sessions are kept, against the share of calls that find theirs, and memory.

A core of a fleet is a process of its own with one worker; sessions belong to a core.  Work is drawn from what was
measured one request at a time, so what two workers of one process take from each other shows in `check`.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
from pathlib import Path
from typing import Any

from _common import print_table, seconds, service_options, write_json
from _load import CLASSES, SHARE, due_times
from _queues import Job, Kept, fewest, keep, poisson, simulate

from toktier.workload import generate

TTLS = [60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86_400.0]


def main() -> int:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, help="what benchmarks/tier.py wrote")
    parser.add_argument("--device", type=Path, help="another such file, of a machine with an accelerator")
    parser.add_argument("--gpus", type=int, default=1000, help="inference GPUs")
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second and GPU")
    parser.add_argument("--jobs", type=int, default=20_000, help="simulated requests a figure")
    parser.add_argument("--sessions", type=int, default=1500, help="simulated, for memory and time to live")
    parser.add_argument("--bytes-a-char", type=float, default=2.7, help="of a session's state, its text included")
    service_options(parser, "capacity.json")
    args = parser.parse_args()
    measured = json.loads(args.measured.read_text())
    alone = {row["front_end"]: row for row in measured.get("alone", [])}
    if not alone:
        parser.error(
            f"{args.measured} holds no service times: run benchmarks/tier.py without --replay, --soak, --contexts"
        )
    device = json.loads(args.device.read_text()) if args.device else None
    on_device = next((r for r in (device or {}).get("alone", []) if r["front_end"] == "device"), None)
    print(f"service times of {args.measured}, measured on {measured['machine']}\n")
    result: dict[str, Any] = {"measured_on": measured["machine"]}
    result["check"] = check(measured, alone, args)
    result["fleet"] = fleet(alone, on_device, args)
    result["kept"] = kept(args)
    write_json(args.json, result)
    if args.plots:
        from _plots import plot_capacity

        plot_capacity(result, args.plots)
    return 0


def job(alone: dict[str, Any], kind: str, rng: random.Random, whole: dict[str, Any] | None = None) -> Job:
    """A job with the work of one that was measured; a whole context on a device if its measurements are given."""
    source = whole if whole is not None and kind == CLASSES[1] else alone
    rows = source["services"][kind] or source["services"][CLASSES[0]]
    work, rest = rng.choice(rows)[:2]
    return Job(0.0, work, rest, kind, rng.randrange(1 << 30), source is whole)


def check(measured: dict[str, Any], alone: dict[str, Any], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Each measured run, simulated with the same arrivals and the same share of whole contexts."""
    arrival = measured["arguments"]["arrival"]
    rows, table = [], []
    for run in measured["runs"]:
        counts = {kind: len(run["services"][kind]) for kind in CLASSES}
        total = sum(counts.values())
        if run["front_end"] not in alone or not total:
            continue
        rng = random.Random(f"check {args.seed} {run['front_end']} {run['rate']}")
        kinds = [kind for kind in CLASSES for _ in range(counts[kind])]
        rng.shuffle(kinds)
        jobs = []
        for at, kind in zip(due_times(run["rate"], total, arrival, args.seed), kinds, strict=True):
            made = job(alone[run["front_end"]], kind, rng)
            jobs.append(Job(at, made.work, made.rest, kind, made.session))
        found = simulate(jobs, run["workers"])
        row = {
            "front_end": run["front_end"],
            "rate": run["rate"],
            "measured": {**{q: run["latency"][CLASSES[0]][q] for q in ("p50", "p99")}, "busy": run["utilisation"]},
            "simulated": {
                "p50": found.quantile(50, CLASSES[0]),
                "p99": found.quantile(99, CLASSES[0]),
                "busy": found.utilisation,
            },
        }
        rows.append(row)
        table.append(
            [row["front_end"], f"{row['rate']:.3g}"]
            + [seconds(row[who][q]) for q in ("p50", "p99") for who in ("measured", "simulated")]
            + [f"{100 * row[who]['busy']:.0f} %" for who in ("measured", "simulated")]
        )
    heads = [f"{q} {who}" for q in ("p50", "p99", "busy") for who in ("measured", "simulated")]
    print("## check: continuations, measured and simulated\n")
    print_table(["front end", "rate", *heads], table)
    return rows


def fleet(alone: dict[str, Any], device: dict[str, Any] | None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Cores for all GPUs' requests."""
    rate = args.gpus * args.rate
    choices: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [(n, row, None) for n, row in alone.items()]
    if device is not None:
        choices += [(f"{name} + device", row, device) for name, row in alone.items() if name.startswith("tier")]
    rows = []
    for name, row, whole in choices:
        jobs = list(poisson(rate, args.jobs, functools.partial(_mixed, row, whole), args.seed))
        work = sum(j.work for j in jobs if not j.accelerator) / len(jobs)
        cores = {f"{target:g}": _cores(jobs, target, name, int(rate * work)) for target in args.targets}
        rows.append({"front_end": name, "work": work, "by_rate": rate * work, "cores": cores})
    print(f"\n## fleet: cores for {args.gpus:,} GPUs of {args.rate:g} requests a second each\n")
    heads = [f"P99 within {seconds(t)}" for t in args.targets]
    print_table(
        ["front end", "mean work", "by the rate alone", *heads],
        [
            [r["front_end"], seconds(r["work"]), f"{r['by_rate']:.1f}"]
            + [str(n) if n is not None else "never: one alone takes longer" for n in r["cores"].values()]
            for r in rows
        ],
    )
    return rows


def _mixed(row: dict[str, Any], whole: dict[str, Any] | None, rng: random.Random) -> Job:
    return job(row, CLASSES[1] if rng.random() < SHARE else CLASSES[0], rng, whole)


def _cores(jobs: list[Job], target: float, name: str, least: int) -> int | None:
    """The fewest cores with a P99 of continuations within the target, None where no number of them is enough."""
    floor = sorted(j.work + j.rest for j in jobs if j.kind == CLASSES[0])
    if floor[int(0.99 * len(floor))] > target:
        return None
    owned, accelerators = name.startswith("tier"), int(any(j.accelerator for j in jobs))

    def enough(cores: int) -> bool:
        if cores < least:
            return False
        return simulate(jobs, cores, accelerators=accelerators, owned=owned).quantile(99, CLASSES[0]) <= target

    return fewest(enough)


def kept(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Sessions of the paper's quantiles, kept for so long."""
    calls = list(generate(args.sessions, seed=args.seed))
    rate = args.gpus * args.rate
    rows, table = [], []
    for ttl in TTLS:
        found: Kept = keep(calls, ttl, args.bytes_a_char, starts=args.sessions / (14 * 86_400.0), seed=args.seed)
        rows.append({"ttl": ttl, "rate": rate, **found.__dict__})
        table.append(
            [
                f"{ttl / 60:g} min",
                f"{100 * found.hit_rate:.1f} %",
                f"{1 / found.scanned_share:.1f}x",
                f"{found.mean_bytes * rate / 1e9:.1f} GB",
            ]
        )
    print(f"\n## kept: sessions of {rate:g} calls a second in all, {args.bytes_a_char:g} bytes a character\n")
    print_table(["kept for", "found again", "fewer characters", "memory"], table)
    return rows


if __name__ == "__main__":
    sys.exit(main())
