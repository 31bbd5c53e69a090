"""What a session call costs, beside encoding the whole text again with every engine there is.

    python benchmarks/session.py                             # embedded o200k_base, English and code made on the spot
    python benchmarks/session.py --tokenizer PATH/tokenizer.json --corpora DIR --json out.json
    python benchmarks/session.py --only soak --operations 1000000

latency   an append of 1,400 characters and an edit in the middle, by size of the context; p50, p90, p99.  *full*
          columns: the best time to encode the whole new text.  Each append is text that nobody has seen.
flat      the same appends to contexts of all sizes, taking turns: does the size of the context matter?
appends   one context, by size of the append.
modes     certified against checked repair.
delivery  ids as array view, list, or patch bytes, for a context of a million tokens or so.
memory    bytes a token beside the text.
adversarial  edits in the middle of short contexts with text made to move boundaries, each compared with the reference.
soak      seeded mixed operations, ids checked against the reference every so often, memory watched.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import Corpus, corpora, machine, print_table, seconds
from peers_tiktoken import tiktoken_twin
from tqdm import tqdm

CONTEXTS = [10_000, 100_000, 1_000_000, 3_000_000, 4_000_000, 8_000_000]
APPENDS = [16, 140, 1_400, 14_000, 100_000]
PARTS = ["latency", "flat", "appends", "modes", "delivery", "memory", "adversarial", "soak"]
# what moves a boundary: digit runs, CR and LF, contractions, marks, scripts side by side, parts of added tokens
NASTY = ["12", "345", "\r\n", "\n", "\r", "  ", "'s", "'", "l", "\u00e9", "e\u0301", "\u0301", "\u1100", "\u1161"]
NASTY += [
    "\u4e2d\u6587",
    "A",
    "b",
    "<|im_",
    "end|>",
    "<|endoftext|>",
    "<|",
    "\u00a0",
    "\u2019re",
    "\ufb01",
    "\u0e40\u0e2b",
]


def main() -> int:
    """Run the parts asked for; 1 where ids were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="o200k_base")
    parser.add_argument("--corpora", help="a directory of .txt files; else texts are made on the spot")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--max-context", type=int, default=max(CONTEXTS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--operations", type=int, default=20_000, help="of the soak")
    parser.add_argument("--edits", type=int, default=15_000, help="adversarial ones")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import toktier

    tok = toktier.load(args.tokenizer)
    found = corpora(args.corpora)
    source = Corpus("mixed", b"".join(c.data for c in found if c.name != "chinese"))
    print(f"{args.tokenizer}, {machine()}\n")
    result: dict[str, Any] = {"machine": machine(), "tokenizer": args.tokenizer}
    for part in args.only or PARTS:
        print(f"\n## {part}\n")
        result[part] = globals()[part](tok, source, args)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    wrong = [part for part in PARTS if any(row.get("wrong") for row in result.get(part, []))]
    if wrong:
        print(f"ids were wrong in: {', '.join(wrong)}", file=sys.stderr)
    return bool(wrong)


def latency(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Appends and edits by context size, beside full encodes."""
    rows, table = [], []
    engines = full_encoders(tok)
    for size in [c for c in CONTEXTS if c <= args.max_context]:
        text = chars(source, size)
        session = tok.session(text, special_tokens="parse")
        appended, _ = timed(args.rounds, lambda: chars(source, 1_400), session.append)
        edited = edits(session, size // 2, args.rounds)
        now = session.text
        want = tok.encode(now, special_tokens="parse", engine="reference") if size <= 1_000_000 else None
        row: dict[str, Any] = {
            "context": size,
            "append": quantiles(appended),
            "edit": quantiles(edited),
            "full": {
                name: min(timed(1 if name == "reference" else 3, functools.partial(str, now), call)[0])
                for name, call in engines.items()
            },
            "wrong": want is not None and not np.array_equal(want, session.ids),
        }
        rows.append(row)
        table.append(
            [f"{size:,}"]
            + [seconds(row[kind][q]) for kind in ("append", "edit") for q in ("p50", "p90", "p99")]
            + [seconds(row["full"][name]) for name in engines]
        )
    heads = [f"{kind} {q}" for kind in ("append", "edit") for q in ("p50", "p90", "p99")]
    print_table(["context", *heads, *(f"full {name}" for name in engines)], table)
    return rows


def flat(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Appends by context size on text of one kind, in one stretch of time: the machine and the text are the same."""
    sizes = [c for c in CONTEXTS if 100_000 <= c <= args.max_context]
    sessions = {size: tok.session(chars(source, size), special_tokens="parse") for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for k in range(args.rounds):
        for size in sizes[k % len(sizes) :] + sizes[: k % len(sizes)]:
            times[size] += timed(1, lambda: chars(source, 1_400), sessions[size].append)[0]
    rows: list[dict[str, Any]] = [{"context": size, "append": quantiles(t)} for size, t in times.items()]
    least = rows[0]["append"]["p50"]
    table = [
        [f"{r['context']:,}", *(seconds(v) for v in r["append"].values()), f"{r['append']['p50'] / least:.2f}"]
        for r in rows
    ]
    print_table(["context", "p50", "p90", "p99", f"p50 against that at {rows[0]['context']:,}"], table)
    return rows


def appends(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """By the size of the append, at one context size."""
    rows = []
    size = min(1_000_000, args.max_context)
    for count in APPENDS:
        session = tok.session(chars(source, size), special_tokens="parse")
        rounds = max(5, min(args.rounds, 400_000 // count))
        times, _ = timed(rounds, functools.partial(chars, source, count), session.append)
        rows.append({"context": size, "append_chars": count, "append": quantiles(times)})
    table = [[f"{r['append_chars']:,}", *(seconds(v) for v in r["append"].values())] for r in rows]
    print_table(["append", "p50", "p90", "p99"], table)
    return rows


def modes(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The two acceptance modes on the same appends, taking turns."""
    size = min(1_000_000, args.max_context)
    text = chars(source, size)
    sessions = {mode: tok.session(text, special_tokens="parse", repair=mode) for mode in ("certified", "checked")}
    times: dict[str, list[float]] = {mode: [] for mode in sessions}
    for k in range(args.rounds):
        part = chars(source, 1_400)
        for mode in list(sessions)[:: 1 if k % 2 else -1]:
            times[mode] += timed(1, functools.partial(str, part), sessions[mode].append)[0]
    same = np.array_equal(sessions["certified"].ids, sessions["checked"].ids)
    rows: list[dict[str, Any]] = [
        {"mode": mode, "append": quantiles(t), "wrong": not same} for mode, t in times.items()
    ]
    print_table(
        ["repair", "p50", "p90", "p99"], [[r["mode"], *(seconds(v) for v in r["append"].values())] for r in rows]
    )
    return rows


def _called(call: Callable[[], Any], _: Any) -> Any:
    return call()


def _fresh_ends(session: Any) -> Any:
    session._ends = None  # the array that was made for the last reader
    return session.ends


def delivery(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """What handing the ids on costs."""
    session = tok.session(chars(source, min(4_000_000, args.max_context)), special_tokens="parse")
    ways: dict[str, Callable[[], Any]] = {
        "view": lambda: session.ids,
        "copy": lambda: session.ids.copy(),
        "bytes": lambda: session.ids.tobytes(),
        "list": lambda: session.ids.tolist(),
        "ends": lambda: _fresh_ends(session),
    }
    rows: list[dict[str, Any]] = [
        {"way": name, "seconds": statistics.median(timed(9, lambda: None, functools.partial(_called, call))[0])}
        for name, call in ways.items()
    ]
    print(f"{len(session):,} tokens\n")
    print_table(["way", "time"], [[r["way"], seconds(r["seconds"])] for r in rows])
    return rows


def memory(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Bytes beside the text."""
    rows = []
    for size in [c for c in CONTEXTS if c <= args.max_context]:
        text = chars(source, size)
        session = tok.session(text, special_tokens="parse")
        beside = session.nbytes - sum(c.text.__sizeof__() for c in session._chunks.chunks)
        rows.append({"context": size, "tokens": len(session), "bytes_a_token": beside / len(session)})
    print_table(
        ["context", "tokens", "bytes a token beside the text"],
        [[f"{r['context']:,}", f"{r['tokens']:,}", f"{r['bytes_a_token']:.1f}"] for r in rows],
    )
    return rows


def adversarial(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Edits in the middle, ids and patches compared with a fresh encode by the reference after each one."""
    rng = random.Random(1)
    wrong, session, ids = 0, None, np.zeros(0, np.int32)
    for k in tqdm(range(args.edits), "edits", disable=None, leave=False):
        if session is None or k % 100 == 0:
            text = "".join(chars(source, 50) + "".join(rng.choices(NASTY, k=3)) for _ in range(30))
            session = tok.session(text, special_tokens="parse", repair="checked" if k % 200 else "certified")
            ids = session.ids.copy()
        start = rng.randrange(session.n_chars + 1)
        stop = min(session.n_chars, start + rng.choice([0, 0, 1, 3, 40]))
        patch = session.edit(start, stop, "".join(rng.choices(NASTY, k=rng.randint(0, 5))))
        ids = np.concatenate([ids[: patch.start], patch.ids, ids[patch.start + patch.removed :]])
        want = tok.encode(session.text, special_tokens="parse", engine="reference")
        wrong += not (np.array_equal(want, session.ids) and np.array_equal(want, ids))
    print(f"{args.edits:,} edits, each compared: {wrong} wrong")
    return [{"edits": args.edits, "wrong": wrong}]


def soak(tok: Any, source: Corpus, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Mixed operations on a handful of sessions, checked now and then; memory at the end as after a quarter."""
    rng = random.Random(0)
    sessions = [tok.session(chars(source, 3_000), special_tokens="parse") for _ in range(4)]
    wrong, begin, start_memory, base = 0, time.perf_counter(), None, 0
    checked = 0
    for k in range(args.operations):
        i = rng.randrange(len(sessions))
        session, n = sessions[i], sessions[i].n_chars
        text = chars(source, 60) if rng.random() < 0.3 else "".join(rng.choices(NASTY, k=rng.randint(1, 5)))
        kind = rng.random()
        if kind < 0.4:
            session.append(text)
        elif kind < 0.8:
            start = rng.randrange(n + 1)
            session.edit(start, min(n, start + rng.choice([0, 1, 5, 40])), text)
        elif kind < 0.9:
            session.truncate(max(0, n - rng.randrange(60)))
        elif kind < 0.95:
            whole = session.text
            at = rng.randrange(n + 1)
            session.update(whole[:at] + text + whole[at:])
        else:
            sessions[i] = session.fork()
        if sessions[i].n_chars > 20_000:
            sessions[i].truncate(3_000)
        if k % max(args.operations // 200, 1) == 0:
            now = sessions[i]
            want = tok.encode(now.text, special_tokens="parse", engine="reference")
            wrong += not np.array_equal(want, now.ids)
            checked += 1
        if k == args.operations // 4:
            gc.collect()
            start_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            base = sum(s.nbytes for s in sessions)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - (start_memory or 0)) << 10
    row = {
        "operations": args.operations,
        "checked": checked,
        "wrong": wrong,
        "seconds": time.perf_counter() - begin,
        "peak_growth": grown,
        "sessions_growth": sum(s.nbytes for s in sessions) - base,
    }
    print(
        f"{args.operations:,} operations in {row['seconds']:.1f} s, {checked} checked, {wrong} wrong; peak memory grew "
        f"by {grown / 1e6:.1f} MB since a quarter of them, the sessions by {row['sessions_growth'] / 1e6:.2f} MB"
    )
    return [row]


def full_encoders(tok: Any) -> dict[str, Callable[[str], Any]]:
    """Engines that encode the whole text."""
    special = "parse"
    found: dict[str, Callable[[str], Any]] = {
        "host": lambda text: tok.encode(text, special_tokens=special, engine="host"),
        "auto": lambda text: tok.encode(text, special_tokens=special),
    }
    twin = tiktoken_twin(tok)
    if twin is not None:
        found["tiktoken"] = lambda text: twin.encode_to_numpy(text, allowed_special="all")
    found["reference"] = lambda text: tok.encode(text, special_tokens=special, engine="reference")
    return found


def edits(session: Any, middle: int, rounds: int) -> list[float]:
    """Seconds of edits near one place."""
    places = iter([random.randrange(200) for _ in range(rounds)])
    return timed(rounds, lambda: middle + next(places), lambda at: session.edit(at, at + 8, "edited "))[0]


def chars(source: Corpus, count: int) -> str:
    """`count` characters not handed out before."""
    text = source.fresh(count * 5 // 4 + 8)
    while len(text) < count:
        text += source.fresh(count)
    return text[:count]


def timed(rounds: int, make: Callable[[], Any], call: Callable[[Any], Any]) -> tuple[list[float], list[Any]]:
    """Seconds of each call, the making of its argument left out, and the arguments."""
    times, arguments = [], []
    for _ in range(rounds):
        argument = make()
        begin = time.perf_counter()
        call(argument)
        times.append(time.perf_counter() - begin)
        arguments.append(argument)
    return times, arguments


def quantiles(times: list[float]) -> dict[str, float]:
    """p50, p90 and p99."""
    return {f"p{q}": float(np.percentile(times, q)) for q in (50, 90, 99)}


if __name__ == "__main__":
    sys.exit(main())
