"""The tier beside stateless front ends: latency under load, the rate that each sustains, and what it takes to be exact.

    python benchmarks/tier.py                                  # all front ends: latency alone, and sustained rates
    python benchmarks/tier.py --front-ends tier --rate 200 --arrival burst
    python benchmarks/tier.py --traces DIR                     # the calls of traces instead of the paper's mixture
    python benchmarks/tier.py --replay DIR --verify 1.0        # every call checked: 0 mismatches, lost, dropped
    python benchmarks/tier.py --contexts 1000000 --sessions 8  # continuations of a million characters
    python benchmarks/tier.py --soak 30                        # minutes under load, memory watched

The load generator is this process, a front end another.  Requests come by a Poisson process or in bursts, whatever has
become of those before; latency counts from when a request was due.  `--json` keeps everything, service times included,
which `benchmarks/capacity.py` carries to many cores; without it they go to benchmarks/out/tier.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from typing import Any

from _common import machine, print_table, seconds, service_options, write_json
from _frontend import BATCH, KINDS, TIERS, FrontEnd, Setup
from _load import CLASSES, SHARE, Driver, Mixture, Outcome, Replay, due_times, quantiles, summary, take
from _soak import soak
from tqdm import tqdm

from toktier.workload import read_traces

GOAL = 0.005  # seconds: P99 of continuations at a million characters


def main() -> int:
    """Run what is asked for; 1 where something was lost, wrong or not flat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="o200k_base")
    parser.add_argument("--front-ends", nargs="+", choices=KINDS, help="default: all that apply")
    parser.add_argument("--workers", type=int, default=2, help="threads of a front end that tokenize")
    parser.add_argument("--verify", nargs="+", type=float, help="shares of the tier's answers that are verified")
    parser.add_argument("--sessions", type=int, default=16, help="live at a time")
    parser.add_argument("--contexts", type=int, help="characters of every context; no whole contexts come in between")
    parser.add_argument("--append", type=int, help="characters of every append, instead of the paper's distribution")
    parser.add_argument("--most", type=int, default=1_500_000, help="characters of a context, at most")
    parser.add_argument("--traces", help="a trace or a folder of them, instead of the paper's mixture")
    parser.add_argument("--replay", metavar="DIR", help="replay traces with every call verified")
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--rate", type=float, help="one rate, requests a second, instead of looking for the highest")
    parser.add_argument("--arrival", choices=["poisson", "burst"], default="poisson")
    parser.add_argument("--objective", choices=["continuation", "all"], default="continuation")
    parser.add_argument("--seconds", type=float, default=5.0, help="of load at each rate")
    parser.add_argument("--steps", type=int, default=6, help="of a search for a rate")
    parser.add_argument("--alone", type=int, default=40, help="requests that come one by one at first")
    service_options(parser, "tier.json")
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "arguments": {k: str(v) for k, v in vars(args).items()}}
    print(f"{args.tokenizer}, {machine()}\n")
    if args.replay:
        status = replay(args, result)
    elif args.soak:
        setup = Setup("tier", args.tokenizer, args.workers, (args.verify or [0.05])[0])
        result["soak"] = soak(setup, mixture(args, most=min(args.most, 400_000)), args)
        status = 0 if result["soak"]["flat"] and not result["soak"]["lost"] else 1
    elif args.contexts:
        status = contexts(args, result)
    else:
        status = compare(args, result)
    write_json(args.json, result)
    print(f"\n{args.json} holds all of it")
    if args.plots:
        from _plots import plot_tier

        plot_tier(result, args.plots)
    return status


def mixture(args: argparse.Namespace, **options: Any) -> Mixture | Replay:
    """The requests to come."""
    if args.traces:
        return Replay(read_traces(args.traces), args.sessions, seed=args.seed, again=True)
    return Mixture(args.sessions, append=args.append, seed=args.seed, **{"most": args.most, **options})


def setups(args: argparse.Namespace) -> list[Setup]:
    """The front ends: those asked for, or all of which tiktoken is left out where it is the reference itself."""
    chosen = args.front_ends or [k for k in KINDS if k != "tiktoken" or args.tokenizer.endswith(".json")]
    warm = tuple(int(args.most / 2**k) for k in range(8))
    found = []
    for kind in chosen:
        for share in (args.verify or [0.0, 0.05]) if kind in TIERS else [0.0]:
            found.append(Setup(kind, args.tokenizer, args.workers, share, warm=warm if kind == "device" else ()))
    return found


# -- front ends beside each other --------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, result: dict[str, Any]) -> int:
    """Each front end alone and under load."""
    result |= {"alone": [], "runs": [], "sustained": []}
    lost = 0
    chosen = setups(args)
    with tqdm(total=len(chosen) * (1 + len(args.targets)), disable=None, leave=False) as bar:
        for setup in chosen:
            bar.set_description(setup.label)
            with FrontEnd(setup) as front:
                source, driver = mixture(args), Driver(front)
                alone = measured_alone(driver, source, args)
                result["alone"].append(alone)
                bar.update()
                if args.rate:
                    runs = [at_rate(driver, source, args.rate, args)]
                    bar.update(len(args.targets))
                else:
                    runs = []
                    for target in args.targets:
                        found, tried = sustained(driver, source, alone, target, args)
                        runs += tried
                        result["sustained"].append({"front_end": setup.label, "target": target, **found})
                        bar.update()
                result["runs"] += runs
                lost += sum(run["lost"] + run["failed"] for run in [alone, *runs])
                tqdm.write(line(setup, alone, runs, result["sustained"]))
    print("\n## Alone: one request at a time, from due to answered\n")
    print_table(*latencies(result["alone"]))
    print(f"\n## Under load ({args.arrival})\n")
    print_table(*latencies([run for run in result["runs"] if args.rate or run.get("chosen")]))
    if result["sustained"]:
        print(f"\n## Requests a second with a P99 of {args.objective} requests within the target\n")
        rows: dict[str, list[str]] = {s["front_end"]: [] for s in result["sustained"]}
        for s in result["sustained"]:
            none = f"below {min(s['tried']):.3g}" if s["tried"] else f"none: {seconds(s['floor'])} alone"
            rows[s["front_end"]].append(f"{s['rate']:.3g}" if s["rate"] else none)
        print_table(
            ["front end", *(f"within {seconds(t)}" for t in args.targets)], [[name, *r] for name, r in rows.items()]
        )
    print("\n" + ("nothing lost, nothing failed" if not lost else f"{lost} requests lost or failed"))
    return int(lost > 0)


def measured_alone(driver: Driver, source: Mixture | Replay, args: argparse.Namespace) -> dict[str, Any]:
    """One request at a time: service times of either class."""
    begin = time.perf_counter()
    outcomes = driver.open(source.opening(), measured=True)
    outcomes += driver.one_by_one(take(source, [0.0] * args.alone))
    row = {"front_end": driver.front.setup.label, "workers": driver.front.setup.workers, "rate": 0.0}
    return row | summary(outcomes, time.perf_counter() - begin, 1) | {"services": services(outcomes)}


def services(outcomes: list[Outcome]) -> dict[str, list[list[float]]]:
    """By class: [seconds of work, seconds beside work and waiting, bytes served, bytes scanned] of each request."""
    found: dict[str, list[list[float]]] = {kind: [] for kind in CLASSES}
    for o in outcomes:
        if o.reply is not None and not o.reply.error and o.latency is not None:
            rest = max(0.0, o.latency - o.reply.seconds - o.reply.queued)
            found[o.request.kind].append([o.reply.seconds, rest, float(o.reply.served), float(o.reply.scanned)])
    return found


def at_rate(driver: Driver, source: Mixture | Replay, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    """So many requests a second for a while, on sessions opened anew."""
    driver.open(source.opening())
    count = max(40, min(int(rate * args.seconds), 20_000))
    count = min(count, max(10, int(rate * args.seconds * 4)))
    times = due_times(rate, count, args.arrival, args.seed)
    outcomes = driver.open_loop(take(source, times))
    span = max((o.request.due + o.latency for o in outcomes if o.latency is not None), default=0.0)
    row = {"front_end": driver.front.setup.label, "workers": driver.front.setup.workers, "rate": rate, "seconds": span}
    return row | summary(outcomes, span, driver.front.setup.workers) | {"services": services(outcomes)}


def worst(run: dict[str, Any], objective: str) -> float:
    """The P99 that counts."""
    kinds = CLASSES if objective == "all" else CLASSES[:1]
    values = [run["latency"][kind]["p99"] for kind in kinds]
    return max((v for v in values if not math.isnan(v)), default=math.inf)


def sustained(
    driver: Driver, source: Mixture | Replay, alone: dict[str, Any], target: float, args: argparse.Namespace
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The highest rate found whose P99 is within the target: bisection of its logarithm."""
    floor = alone["latency"]["continuation"]["p50"]
    if floor > target:
        return {"rate": 0.0, "floor": floor, "tried": []}, []
    once, whole = ([row[0] for row in alone["services"][kind]] or [0.0] for kind in CLASSES)
    work = (1 - SHARE) * statistics.fmean(once) + SHARE * statistics.fmean(whole)
    high = 1.5 * args.workers / max(work, 1e-5)
    low, best, tried = high / 64, 0.0, []
    for _ in range(args.steps):
        rate = math.sqrt(low * high)
        run = at_rate(driver, source, rate, args)
        tried.append(run)
        if worst(run, args.objective) <= target and not run["lost"] and not run["failed"]:
            low = best = rate
        else:
            high = rate
    for run in tried:
        run["chosen"] = run["rate"] == best
    return {"rate": best, "floor": floor, "tried": [run["rate"] for run in tried]}, tried


# -- exactness -------------------------------------------------------------------------------------------------------


def replay(args: argparse.Namespace, result: dict[str, Any]) -> int:
    """Every call of the traces, so many sessions side by side, as fast as they are verified."""
    share = (args.verify or [1.0])[0]
    source = Replay(read_traces(args.replay), args.sessions, seed=args.seed)
    kind = next((k for k in args.front_ends or ["tier"] if k in TIERS), "tier")
    setup = Setup(kind, args.tokenizer, args.workers, share, patient=True)
    begin = time.perf_counter()
    outcomes: list[Outcome] = []
    with FrontEnd(setup) as front, tqdm(total=len(source), unit=" calls", disable=None, leave=False) as bar:
        driver, requests = Driver(front), iter(source)
        while batch := take(requests, [0.0] * BATCH):
            outcomes += driver.open_loop(batch)
            bar.update(len(batch))
        stats = front.stats()
    verifier = stats.get("verifier") or {}
    row = summary(outcomes, time.perf_counter() - begin, args.workers)
    row |= {"calls": len(source), "seconds": time.perf_counter() - begin, "stats": stats}
    row["lost"] += len(source) - len(outcomes)
    result["replay"] = row
    fewer = row["served_bytes"] / max(row["scanned_bytes"], 1)
    print(f"{row['requests']:,} calls of {args.replay} in {row['seconds']:.0f} s, paths {row['paths']}")
    print(f"served {row['served_bytes']:,} bytes, scanned {row['scanned_bytes']:,}: {fewer:.1f} times fewer")
    print(f"verifier: {verifier.get('offered', 0):,} offered, {verifier.get('checked', 0):,} checked")
    figures = {
        "mismatches": verifier.get("mismatched", 0),
        "lost": row["lost"] + row["failed"],
        "dropped": verifier.get("dropped", 0) + verifier.get("errors", 0),
    }
    if share == 1.0 and verifier.get("checked", 0) + figures["dropped"] < len(source):
        figures["lost"] += len(source) - verifier.get("checked", 0) - figures["dropped"]
    row["figures"] = figures
    for error in row["errors"]:
        print(f"failed: {error}")
    print(", ".join(f"{count} {name}" for name, count in figures.items()))
    return int(any(figures.values()))


# -- long contexts ---------------------------------------------------------------------------------------------------


def contexts(args: argparse.Namespace, result: dict[str, Any]) -> int:
    """Continuations only, of contexts of one size, at a rate."""
    rows = []
    for share in args.verify or [0.0, 0.05]:
        setup = Setup((args.front_ends or ["tier"])[0], args.tokenizer, args.workers, share)
        with FrontEnd(setup) as front:
            source = Mixture(
                args.sessions, context=args.contexts, append=args.append, share=0.0, most=args.most, seed=args.seed
            )
            driver = Driver(front)
            opened = summary(driver.one_by_one(source.opening()), 1.0, 1)
            warm = due_times(args.rate or 2.0 * args.sessions, 4 * args.sessions, "poisson", 1)
            driver.open_loop(take(source, warm))
            rate = args.rate or 2.0 * args.sessions
            times = due_times(rate, int(rate * max(args.seconds, 1.0)), args.arrival, args.seed)
            outcomes = driver.open_loop(take(source, times))
            row = {"front_end": setup.label, "workers": args.workers, "rate": rate, "context": args.contexts}
            row |= summary(outcomes, times[-1], args.workers)
            row |= {"opened": opened["latency"]["initialization"], "by_append": by_append(outcomes)}
            row |= {"services": services(outcomes), "memory": front.memory(), "stats": front.stats()}
            rows.append(row)
    result["contexts"] = rows
    print(f"{args.sessions} sessions of {args.contexts:,} characters, {rows[0]['rate']:g} calls a second in all\n")
    print_table(*latencies(rows))
    print("\n## Continuations by the characters appended\n")
    print_table(
        ["front end", "appended", "calls", "p50", "p90", "p99", "max"],
        [
            [row["front_end"], name, str(part["calls"]), *(seconds(part[q]) for q in ("p50", "p90", "p99", "max"))]
            for row in rows
            for name, part in row["by_append"].items()
        ],
    )
    for row in rows:
        p99 = row["latency"]["continuation"]["p99"]
        checked = (row["stats"].get("verifier") or {}).get("checked", 0)
        row["within_goal"] = p99 <= GOAL
        verdict = f"P99 {seconds(p99)}, {'within' if p99 <= GOAL else 'ABOVE'} {seconds(GOAL)}"
        print(f"\n{row['front_end']}: {verdict}; {row['lost']} lost, {row['failed']} failed, {checked} verified")
    return int(any(row["lost"] or row["failed"] for row in rows))


def by_append(outcomes: list[Outcome]) -> dict[str, dict[str, float]]:
    """Latency of continuations by the size of what they append."""
    bounds = [0, 1_400, 14_000, 38_000, 10**9]
    found = {}
    for low, high in itertools.pairwise(bounds):
        part = [o.latency for o in outcomes if o.latency is not None and low < len(o.request.append) <= high]
        if part:
            name = f"up to {high:,}" if high < 10**9 else f"above {low:,}"
            found[name] = {"calls": len(part), **quantiles(part)}
    return found


# -- tables ----------------------------------------------------------------------------------------------------------


def latencies(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of latencies."""
    header = ["front end", "rate"]
    header += [f"{kind} {q}" for kind in CLASSES for q in ("p50", "p90", "p99")]
    header += ["served/s", "scanned/s", "busy", "lost"]
    table = []
    for row in rows:
        span = row.get("seconds") or row["requests"] / row["rate"] if row["rate"] else 0.0
        table.append(
            [row["front_end"], f"{row['rate']:.3g}" if row["rate"] else "-"]
            + [seconds(row["latency"][kind][q]) for kind in CLASSES for q in ("p50", "p90", "p99")]
            + [f"{row[k] / span / 1e6:.1f} MB" if span else "-" for k in ("served_bytes", "scanned_bytes")]
            + [f"{100 * row['utilisation']:.0f} %", str(row["lost"] + row["failed"])]
        )
    return header, table


def line(setup: Setup, alone: dict[str, Any], runs: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """What is said of a front end while the next is measured."""
    rates = [f"{s['rate']:.3g}/s within {seconds(s['target'])}" for s in found if s["front_end"] == setup.label]
    latency = alone["latency"]["continuation"]
    return f"{setup.label}: {seconds(latency['p50'])} alone, {len(runs)} runs, {', '.join(rates)}"


if __name__ == "__main__":
    sys.exit(main())
