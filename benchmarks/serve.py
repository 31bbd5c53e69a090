"""What the service costs over HTTP, beside the work itself: real `toktier serve`, real client, loopback.

    python benchmarks/serve.py
    python benchmarks/serve.py --only http --contexts 100K,1M --rounds 200
    python benchmarks/serve.py --only soak --minutes 30 --json benchmarks/out/serve.json

wire      ids as JSON by NumPy, by the standard library, and raw, by number of ids.
http      one client, by size of the context: an append of 1,400 characters answered by a raw patch, by a patch in
          JSON, by all ids raw and in JSON; the whole prompt sent to /tokenize.  Milliseconds, and bytes both ways.
soak      eight clients (appends, edits, new sessions, half requests), all answers verified; memory and open files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import SIZES, Corpus, corpora, machine, median, print_table, seconds, write_json
from tqdm import tqdm

from toktier.serve import wire
from toktier.serve.client import Client, RemoteSession

PARTS = ["wire", "http", "soak"]
APPEND = 1_400
SIZES = {**SIZES, "100K": 100_000, "1M": 1_000_000}


def main() -> int:
    """Run the parts asked for; 1 where ids were wrong or memory grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="o200k_base")
    parser.add_argument("--corpora", help="a directory of .txt files; else texts are made on the spot")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--contexts", default="16K,100K,1M")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=1.0, help="of the soak")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    source = Corpus("mixed", b"".join(c.data for c in corpora(args.corpora) if c.name != "chinese"))
    result: dict[str, Any] = {"machine": machine(), "tokenizer": args.tokenizer}
    print(f"{args.tokenizer}, {machine()}")
    run = {"wire": writing, "http": http, "soak": soak}
    for part in args.only or PARTS:
        print(f"\n## {part}\n")
        result[part] = run[part](source, args)
    if args.json:
        write_json(args.json, result)
    return int(bool(result.get("soak", {}).get("wrong")))


@contextlib.contextmanager
def service(*arguments: str) -> Iterator[tuple[str, int]]:
    """Address and process id of a running service."""
    command = [sys.executable, "-m", "toktier.cli", "serve", "-p", "0", "--no-access-log", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"on (http://\S+)", line):
                break
        else:
            raise RuntimeError("the service did not start")
        try:
            yield found[1], process.pid
        finally:
            process.terminate()
            process.stderr.read()


def wire_forms() -> dict[str, Callable[[np.ndarray], bytes]]:
    """Ways to write ids."""
    return {
        "numpy": wire.ids_json,
        "json": lambda ids: json.dumps(ids.tolist(), separators=(",", ":")).encode(),
        "raw": wire.raw,
    }


def writing(source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Ids written as JSON and raw."""
    rows = []
    for n in (100, 10_000, 1_000_000):
        ids = np.random.default_rng(n).integers(0, 200_000, n).astype(np.int32)
        row: dict[str, Any] = {"ids": n}
        for name, write in wire_forms().items():
            times = []
            for _ in range(max(3, min(args.rounds, 2_000_000 // n))):
                begin = time.perf_counter()
                written = write(ids)
                times.append(time.perf_counter() - begin)
            row[name], row[f"{name}_bytes"] = median(times), len(written)
        rows.append(row)
    print_table(
        ["ids", "JSON by NumPy", "JSON by json", "raw", "bytes of JSON", "bytes raw"],
        [
            [
                f"{r['ids']:,}",
                *(seconds(r[name]) for name in wire_forms()),
                f"{r['json_bytes']:,}",
                f"{r['raw_bytes']:,}",
            ]
            for r in rows
        ],
    )
    return rows


def http(source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Latency of each way to get the ids of a prompt that grew."""
    rows: list[dict[str, Any]] = []
    contexts = [SIZES[c] for c in args.contexts.split(",")]
    with (
        service("-m", f"m={args.tokenizer}", "--verify-rate", "0", "--max-body", "64M") as (url, _),
        Client(url) as client,
    ):
        for size in contexts:
            text = source.fresh(size)
            session = client.session(f"s{size}", text, special_tokens="text")
            for name, call in ways(client, session, source).items():
                rounds = args.rounds if "whole" not in name else max(3, args.rounds // 10)
                times, up, down = [], 0, 0
                for _ in tqdm(range(rounds), name, leave=False, disable=not sys.stderr.isatty()):
                    begin = time.perf_counter()
                    up, down = call()
                    times.append(time.perf_counter() - begin)
                p50, p99 = np.quantile(times, [0.5, 0.99])
                rows.append({"context": size, "way": name, "p50": p50, "p99": p99, "up": up, "down": down})
    print_table(
        ["context", "way", "P50", "P99", "bytes up", "bytes down"],
        [[f"{r['context']:,}", r["way"], seconds(r["p50"]), seconds(r["p99"]), f"{r['up']:,}", f"{r['down']:,}"]
         for r in rows],
    )  # fmt: skip
    return rows


def ways(client: Client, session: RemoteSession, source: Corpus) -> dict[str, Callable[[], tuple[int, int]]]:
    """Each sends one request and returns the bytes sent and received."""

    def kept() -> tuple[int, int]:
        piece = source.fresh(APPEND)
        patch = session.append(piece)
        return len(piece.encode()), 4 * len(patch.ids)

    def append(raw: bool, **options: Any) -> Callable[[], tuple[int, int]]:
        def call() -> tuple[int, int]:
            body = {"text": source.fresh(APPEND), **options}
            reply = client.request("POST", f"/sessions/{session.name}.other/append", body, raw=raw)
            return len(json.dumps(body)), len(reply.content)

        return call

    def whole(raw: bool) -> Callable[[], tuple[int, int]]:
        def call() -> tuple[int, int]:
            body = {"prompt": session.text + source.fresh(APPEND), "special_tokens": "text"}
            reply = client.request("POST", "/tokenize", body, raw=raw)
            return len(json.dumps(body)), len(reply.content)

        return call

    client.session(f"{session.name}.other", session.text, special_tokens="text")
    return {
        "append, client keeps ids": kept,
        "append, patch in JSON": append(False),
        "append, all ids raw": append(True, return_ids=True),
        "append, all ids in JSON": append(False, return_ids=True),
        "whole prompt, ids raw": whole(True),
        "whole prompt, ids in JSON": whole(False),
    }


def soak(source: Corpus, args: argparse.Namespace) -> dict[str, Any]:
    """Eight clients for some minutes."""
    held: list[tuple[float, int, int]] = []
    with tempfile.TemporaryDirectory() as directory:
        options = ["--sessions", directory, "--verify-rate", "1", "--max-session-bytes", "64M"]
        with service("-m", f"m={args.tokenizer}", *options) as (url, pid):
            begin, end = time.monotonic(), time.monotonic() + 60 * args.minutes
            texts = source.fresh(1 << 20)
            context = multiprocessing.get_context("spawn")
            clients = [context.Process(target=visit, args=(url, k, 60 * args.minutes, texts)) for k in range(8)]
            for process in clients:
                process.start()
            with tqdm(total=round(60 * args.minutes), unit="s", disable=not sys.stderr.isatty()) as bar:
                while time.monotonic() < end:
                    time.sleep(min(5.0, max(end - time.monotonic(), 0.1)))
                    held.append(
                        (time.monotonic() - begin, _resident(pid), len(list(Path(f"/proc/{pid}/fd").iterdir())))
                    )
                    bar.update(round(time.monotonic() - begin) - bar.n)
            for process in clients:
                process.join()
            with Client(url) as client:
                page = client.request("GET", "/metrics").content.decode()
    counts = {m[1]: float(m[2]) for m in re.finditer(r'toktier_verifier_total\{event="(\w+)"\} (\S+)', page)}
    answers = sum(float(v) for v in re.findall(r"toktier_answers_total\{.*?\} (\S+)", page))
    failed = [k for k, process in enumerate(clients) if process.exitcode]
    settled = held[len(held) // 3 :]
    report = {
        "minutes": args.minutes,
        "answers": answers,
        "checked": counts.get("checked"),
        "wrong": counts.get("mismatched", 0) + len(failed),
        "dropped": counts.get("dropped"),
        "resident_mb": [settled[0][1] >> 20, max(h[1] for h in settled) >> 20, settled[-1][1] >> 20],
        "open_files": [settled[0][2], settled[-1][2]],
    }
    print("\n".join(f"{name:12} {value}" for name, value in report.items()))
    return report


def visit(url: str, seed: int, duration: float, text: str) -> None:
    """One client of the soak; ends with an error where its ids cannot be right."""
    rng, end = random.Random(seed), time.monotonic() + duration
    parts = url.removeprefix("http://").rpartition(":")
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{"
    )
    with Client(url) as client:
        while time.monotonic() < end:
            at = rng.randrange(len(text) // 2)
            name = f"soak.{seed}.{rng.randrange(4)}"
            session = client.session(name, text[at : at + rng.randrange(100_000)], special_tokens="text")
            for _ in range(rng.randrange(40)):
                at = rng.randrange(len(text) - 20_000)
                if rng.random() < 0.8:
                    session.append(text[at : at + int(rng.expovariate(1 / APPEND))])
                else:
                    session.update(session.text[: rng.randrange(len(session.text) + 1)] + text[at : at + 100])
            if client.tokenize(session.text, special_tokens="text").tolist() != session.ids.tolist():
                raise SystemExit(1)
            if rng.random() < 0.2:
                session.delete()
            with socket.create_connection((parts[0], int(parts[2]))) as rude:
                rude.sendall(head)


def _resident(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found else 0


if __name__ == "__main__":
    sys.exit(main())
