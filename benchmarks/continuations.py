"""Continuations of long sessions in the process that holds the tier: what a serving front end waits for.

    python benchmarks/continuations.py                 # 8 sessions of a million characters, 80 calls a second
    python benchmarks/continuations.py --tokenizer PATH --rate 16 --seconds 60

One thread a session calls `Tier.append` at times of a Poisson process; text is new each time.  Latency counts from the
call, and from when it was due.  The verifier checks its share in a process of its own, and the collector is frozen once
all is made, as `toktier serve` does.  `tier.py` asks the same through pipes, with a load generator beside.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time

import numpy as np
from _common import machine, print_table

import toktier
from toktier.tier import Tier, Verifier
from toktier.workload import Material


def main() -> int:
    """0 if the P99 from the call is within the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="o200k_base", help="what toktier.load takes [o200k_base]")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--context", type=int, default=1_000_000, help="characters of each")
    parser.add_argument("--append", type=int, default=1400, help="characters of a call")
    parser.add_argument("--rate", type=float, default=80.0, help="calls a second, of all sessions")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--verify", type=float, default=0.05, help="share of the answers that is verified")
    parser.add_argument("--target", type=float, default=0.005, help="seconds, P99 from the call")
    args = parser.parse_args()
    print(machine())
    calls = int(args.rate * args.seconds / args.sessions * 2) + 100
    texts = [Material(seed).text(args.context + calls * args.append) for seed in range(args.sessions)]
    from_call: list[float] = []
    from_due: list[float] = []
    verifier = Verifier(args.verify, seed=1) if args.verify else None
    with Tier({"t": toktier.load(args.tokenizer)}, verifier=verifier) as tier:
        tier.warmup()
        for k, text in enumerate(texts):
            tier.encode(text[: args.context], session=f"s{k}", special_tokens="text")
        if verifier is not None:
            verifier.wait(60)
        gc.collect()
        gc.freeze()

        def client(k: int) -> None:
            rng, at = random.Random(k), args.context
            begin = due = time.perf_counter()
            while True:
                due += rng.expovariate(args.rate / args.sessions)
                if due - begin > args.seconds or at + args.append > len(texts[k]):
                    return
                time.sleep(max(0.0, due - time.perf_counter()))
                part = texts[k][at : at + args.append]
                at += args.append
                called = time.perf_counter()
                tier.append(f"s{k}", part, special_tokens="text")
                done = time.perf_counter()
                from_call.append(done - called)
                from_due.append(done - due)

        threads = [threading.Thread(target=client, args=(k,)) for k in range(args.sessions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = {} if verifier is None else verifier.stats()
    rows = []
    for name, seconds in (("from the call", from_call), ("from when it was due", from_due)):
        rows.append(
            [name, str(len(seconds)), *(f"{1e3 * q:.2f} ms" for q in np.quantile(seconds, [0.5, 0.9, 0.99, 1]))]
        )
    print_table(["latency", "calls", "p50", "p90", "p99", "max"], rows)
    print({name: counts[name] for name in ("sampled", "checked", "mismatched", "dropped") if name in counts})
    return 0 if np.quantile(from_call, 0.99) <= args.target else 1


if __name__ == "__main__":
    sys.exit(main())
