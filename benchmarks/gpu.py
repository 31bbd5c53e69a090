"""One run that says all of a device: are the ids exact, and what does each thing cost beside its floor.

    python benchmarks/gpu.py                    # on a machine with a GPU: under 5 minutes
    python benchmarks/gpu.py --quick            # smaller sizes: for a CPU, or to see that it runs
    python benchmarks/gpu.py --write-digests    # asks the reference once and stores what the check compares with

Uses nothing but this repository.  In this order, and what no longer fits `--seconds` is left out and named: exactness
against stored digests of the reference's ids; kernels in the compiled programs; latency of one fresh request, ids as an
array and as a list; bulk speed from one buffer and from documents; profile by stage; merge rounds between two looks;
compilation, cold and from the cache; memory of the device.  The floor is the bytes moved at the bandwidth of one pass
over memory, which is measured first: for a request the text in and eight bytes out a token, in the profile the stages'
own bytes.

The exit status is 1 if an id differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import Corpus, corpora, machine, median, print_table, seconds

SIZES = {"1 K": 1000, "64 K": 64_000, "1 M": 1_000_000, "2 M": 2_000_000, "4 M": 4_000_000}
TOKENIZER = "o200k_base"
ROUNDS = (1, 4, 16)  # of merges between two looks; at 16 those of the shortest pieces are straight-line code


class Clock:
    """How much of the time allowed is left."""

    def __init__(self, allowed: float) -> None:
        self.begin, self.allowed = time.perf_counter(), allowed

    def left(self) -> float:
        """Seconds."""
        return self.allowed - (time.perf_counter() - self.begin)

    def part(self, title: str, needs: float) -> bool:
        """Prints the title of a part, unless less time than it needs is left."""
        if self.left() < needs:
            print(f"\n## {title}: left out, only {self.left():.0f} s are left", flush=True)
            return False
        print(f"\n## {title}", flush=True)
        return True


def exactness(quick: bool) -> tuple[bool, int]:
    """Compares with the stored digests; prints what differs."""
    from _texts import check

    bad = done = 0
    for tokenizer, text, wrong in check("device", large=not quick):
        done += 1
        if wrong:
            bad += 1
            print(f"WRONG {tokenizer}, {text}: {wrong}")
    print(f"{done} texts checked against the reference's stored ids, {bad} differ", flush=True)
    return bad == 0, done


def compile_child(sizes: list[int]) -> None:
    """In a process of its own: seconds of the first launch of each capacity, as JSON."""
    import numpy as np

    import toktier

    begin = time.perf_counter()
    engine = toktier.load(TOKENIZER).core.device
    found = {"engine": time.perf_counter() - begin}
    for size in sizes:
        begin = time.perf_counter()
        engine.encode_buffer(np.full(size // 2, ord("a"), np.uint8))
        found[str(size)] = time.perf_counter() - begin
    print(json.dumps(found))


def compilation(capacities: list[int], limit: float) -> list[list[str]]:
    """Seconds to get each program, from nothing and from the cache on disk."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        # the GPU's memory is not all taken by the parent (see main), so that the child finds some
        command = [sys.executable, __file__, "--compile-child", ",".join(map(str, capacities))]
        found = []
        for _ in range(2):
            try:
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=True)
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as e:
                print(f"compilation: {type(e).__name__}: {str(e.stderr or '')[-300:]}")
                return rows
            found.append(json.loads(done.stdout.splitlines()[-1]))
        cold, warm = found
        rows = [[name, seconds(cold[name]), seconds(warm[name])] for name in cold]
    return rows


def kernel_counts(engine: Any, capacities: list[int]) -> list[list[str]]:
    """Kernels, loops and branches of each compiled program."""
    import jax
    import jax.numpy as jnp

    from toktier import device, kernels, programs

    rows = []
    for capacity in capacities:
        tiles = device.tiles_for(capacity, engine.backend)
        data = jax.ShapeDtypeStruct((capacity,), jnp.uint8)
        compiled = programs.jitted(engine.backend).lower(engine.tables, data, tiles, engine.backend != "cpu").compile()
        k, memory = kernels.count(compiled.as_text() or ""), compiled.memory_analysis()
        kinds = ", ".join(f"{n} {kind}" for kind, n in list(k.by_kind.items())[:5])
        temporary = f"{memory.temp_size_in_bytes / capacity:.0f}" if memory is not None else "-"
        rows.append([str(capacity), str(k.kernels), str(k.loops), str(k.branches), kinds, temporary])
    return rows


def merge_rounds(engine: Any, corpus: Corpus, capacity: int) -> list[list[str]]:
    """Seconds of one launch by how many merge rounds run between two looks at which pieces are done."""
    import jax
    import numpy as np

    from toktier import device, programs

    data = np.full(capacity, 0xFF, np.uint8)
    part = corpus_bytes(corpus, capacity - 16)
    data[: len(part)] = part
    buffer, rows, want = jax.device_put(data), [], None
    for rounds in ROUNDS:
        tiles = device.tiles_for(capacity, engine.backend)._replace(rounds=rounds)
        begin = time.perf_counter()
        out = jax.block_until_ready(programs.jitted(engine.backend)(engine.tables, buffer, tiles, False))
        first = time.perf_counter() - begin
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            out = jax.block_until_ready(programs.jitted(engine.backend)(engine.tables, buffer, tiles, False))
            times.append(time.perf_counter() - begin)
        ids = np.asarray(out[0])[: int(out[2])]
        want = ids if want is None else want
        rows.append([str(rounds), seconds(first), seconds(median(times)), str(np.array_equal(ids, want))])
    return rows


def latency(tok: Any, corpus: Corpus, size: int, speed: float, rounds: int) -> list[str]:
    """One row: a fresh text each time, the ids as an array and as a list."""
    times: dict[str, list[float]] = {"array": [], "list": []}
    n_bytes = n_ids = 0
    tok.encode(corpus.fresh(size), engine="device", special_tokens="text")
    for k in range(2 * rounds):
        text = corpus.fresh(size)
        begin = time.perf_counter()
        ids = tok.encode(text, engine="device", special_tokens="text")
        if k % 2:
            ids.tolist()
        times["list" if k % 2 else "array"].append(time.perf_counter() - begin)
        n_bytes, n_ids = len(text.encode()), len(ids)
    floor = (n_bytes + 8 * n_ids) / speed
    array = median(times["array"])
    return [seconds(array), seconds(median(times["list"])), seconds(floor), f"{array / floor:.0f} x"]


def bulk(tok: Any, corpus: Corpus, size: int, speed: float) -> list[str]:
    """One row: GB/s of one large buffer already on the host, and of documents of some 1,000 characters."""
    import numpy as np

    engine = tok.core.device
    text = corpus.fresh(size)
    buffer = np.frombuffer(text.encode(), np.uint8)
    docs = [text[k : k + 1000] for k in range(0, len(text), 1000)]
    ids = engine.encode_buffer(buffer).ids
    tok.encode_batch(docs[:100], engine="device", special_tokens="text")
    begin = time.perf_counter()
    engine.encode_buffer(corpus_bytes(corpus, size))
    one = len(buffer) / (time.perf_counter() - begin)
    begin = time.perf_counter()
    tok.encode_batch(docs, engine="device", special_tokens="text")
    batch = len(buffer) / (time.perf_counter() - begin)
    floor = len(buffer) / ((len(buffer) + 8 * len(ids)) / speed)
    return [f"{len(buffer) / 1e6:.1f} MB", f"{one / 1e9:.3f}", f"{batch / 1e9:.3f}", f"{floor / 1e9:.1f}"]


def corpus_bytes(corpus: Corpus, size: int) -> Any:
    """uint8: fresh text."""
    import numpy as np

    return np.frombuffer(corpus.fresh(size).encode(), np.uint8)


def memory_of(device: Any) -> str:
    """What JAX says of the device's memory."""
    stats = device.memory_stats()
    if not stats:
        return "the backend does not tell"
    named = {k: stats[k] for k in ("bytes_in_use", "peak_bytes_in_use", "bytes_limit") if k in stats}
    return ", ".join(f"{k}: {v / 2**20:.0f} MiB" for k, v in named.items())


def main() -> int:
    """Run and print."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="small sizes, the smallest program only")
    p.add_argument(
        "--seconds", type=float, default=270, help="the whole run's time; parts that do not fit are left out"
    )
    p.add_argument("--write-digests", action="store_true", help="store what the reference gives, and stop")
    p.add_argument("--json", help="also write the tables to this file")
    p.add_argument("--compile-child", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.compile_child:
        compile_child(list(map(int, args.compile_child.split(","))))
        return 0
    if args.write_digests:
        from _texts import write_digests

        write_digests()
        return 0
    # by default JAX takes three quarters of a GPU's memory at once, and the processes that compile would find none
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    clock = Clock(args.seconds)
    import _stages
    import jax

    import toktier

    device = jax.devices()[0]
    info = {**machine(), "backend": jax.default_backend(), "device": device.device_kind, "devices": jax.device_count()}
    print("  ".join(f"{k}: {v}" for k, v in info.items()), flush=True)
    tables: dict[str, Any] = {"machine": info}
    speed = _stages.bandwidth(_stages.PASS if args.quick else 1 << 28)
    print(f"one pass over memory reads and writes {speed / 1e9:.1f} GB/s")

    def table(name: str, header: list[str], rows: list[list[str]]) -> None:
        print_table(header, rows)
        tables[name] = {"header": header, "rows": rows}

    exact = True
    if clock.part("Exactness on this device", 0):
        exact, tables["exact"] = exactness(args.quick)
    tok = toktier.load(TOKENIZER)
    engine = tok.core.device
    capacities = list(engine.capacities[:1] if args.quick else engine.capacities)
    if clock.part("Kernels in the compiled program", 20):
        header = ["capacity", "kernels", "loops", "branches", "kinds", "temporary bytes a byte"]
        table("kernels", header, kernel_counts(engine, capacities))
    texts = {c.name: c for c in corpora(None)}
    sizes = dict(list(SIZES.items())[:2]) if args.quick else SIZES
    if clock.part("One fresh request", 20):
        rows = []
        for name, corpus in texts.items():
            for label, size in sizes.items():
                if clock.left() > 10:
                    rows.append([name, label, *latency(tok, corpus, size, speed, 3 if args.quick else 7)])
        table("latency", ["text", "size", "array", "list", "floor", "of floor"], rows)
    if clock.part("Bulk", 20):
        size = 1 << (20 if args.quick else 26)
        rows = [[name, *bulk(tok, corpus, size, speed)] for name, corpus in texts.items() if clock.left() > 10]
        table("bulk", ["text", "bytes", "one buffer, GB/s", "documents, GB/s", "floor, GB/s"], rows)
    if clock.part("Profile by stage", 45):
        for name, corpus in texts.items():
            if clock.left() < 30 or (args.quick and name != "english"):
                continue
            rows, _ = _stages.rows(TOKENIZER, corpus, capacities[-1] - 16, speed, 3)
            print(f"\n{name}")
            table(f"profile {name}", _stages.HEADER, rows)
    if clock.part("Merge rounds between two looks", 60):
        header = ["rounds", "first call", "a launch", "same ids"]
        table("rounds", header, merge_rounds(engine, texts["code"], capacities[-1]))
    if clock.part("Compilation, in processes of their own", 60):
        rows = compilation(capacities, clock.left() / 1.3)
        table("compilation", ["program", "from nothing", "from the cache"], rows)
    print(f"\nmemory of the device: {memory_of(device)}\n{args.seconds - clock.left():.0f} s in all")
    if args.json:
        Path(args.json).write_text(json.dumps(tables, indent=1, default=str))
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
