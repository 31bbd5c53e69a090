"""Load for minutes or hours, with the memory of the front end watched."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from _frontend import FrontEnd, Setup
from _load import Driver, Mixture, Replay, due_times, summary, take

CHUNK = 10.0  # seconds of load between two looks at the memory
SLACK = 32 << 20  # bytes: growth that is noise of the allocator


def soak(setup: Setup, source: Mixture | Replay, args: argparse.Namespace) -> dict[str, Any]:
    """Load at a rate for `args.soak` minutes; is the memory beside the sessions' own flat?

    Flat means: the median of the last quarter is above that of the second by no more than 5 %, or 32 MiB.
    """
    from tqdm import tqdm

    rate = args.rate or 20.0
    samples: list[dict[str, float]] = []
    rows: list[dict[str, Any]] = []
    with FrontEnd(setup) as front, tqdm(total=int(args.soak * 60), unit=" s", disable=None, leave=False) as bar:
        driver = Driver(front)
        driver.one_by_one(source.opening())
        begin = time.perf_counter()
        lap = 0
        while (now := time.perf_counter() - begin) < args.soak * 60:
            length = min(CHUNK, args.soak * 60 - now + 0.5)
            times = due_times(rate, max(1, int(rate * length)), args.arrival, lap)
            rows.append(summary(driver.open_loop(take(source, times)), length, setup.workers))
            stats = front.stats()
            held = stats["sessions"]["nbytes"]
            samples.append({"at": time.perf_counter() - begin, "resident": front.memory(), "sessions": held})
            lap += 1
            bar.update(int(time.perf_counter() - begin) - bar.n)
        stats = front.stats()
    found = verdict(samples)
    found |= {"samples": samples, "rate": rate, "minutes": args.soak, "stats": stats, "front_end": setup.label}
    for name in ("requests", "lost", "failed", "served_bytes", "scanned_bytes"):
        found[name] = sum(row[name] for row in rows)
    found["errors"] = sorted({error for row in rows for error in row["errors"]})
    found["p99"] = statistics.median(row["latency"]["continuation"]["p99"] for row in rows)
    verifier = stats.get("verifier") or {}
    counts = ", ".join(f"{verifier.get(k, 0):,} {k}" for k in ("checked", "mismatched", "dropped"))
    print(
        f"{found['requests']:,} requests in {args.soak:g} minutes at {rate:g} a second; {found['lost']} lost, "
        f"{found['failed']} failed; verifier: {counts}"
    )
    print(
        f"resident memory beside the sessions' own: {found['start'] / 1e6:.0f} MB in the second quarter, "
        f"{found['end'] / 1e6:.0f} MB in the last, {found['slope'] / 1e6:+.1f} MB an hour; sessions hold "
        f"{samples[-1]['sessions'] / 1e6:.0f} MB"
    )
    print(f"verdict: memory is {'flat' if found['flat'] else 'NOT flat'}")
    return found


def verdict(samples: list[dict[str, float]]) -> dict[str, Any]:
    """The memory beside the sessions: `start` and `end`, medians of the second and the last quarter; is it `flat`?

    `slope` is in bytes an hour, over the second half.
    """
    beside = [s["resident"] - s["sessions"] for s in samples]
    n = len(beside)
    start = statistics.median(beside[n // 4 : n // 2] or beside)
    end = statistics.median(beside[3 * n // 4 :] or beside)
    half = samples[n // 2 :]
    slope = 0.0
    if len(half) > 2:
        slope = statistics.linear_regression([s["at"] for s in half], beside[n // 2 :]).slope * 3600
    return {"start": start, "end": end, "slope": slope, "flat": end - start <= max(0.05 * start, SLACK)}
