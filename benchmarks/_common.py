"""What the benchmarks share: texts, fresh slices of them, engines taking turns, and a description of the machine."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import os
import platform
import random
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"1K": 1 << 10, "16K": 1 << 14, "64K": 1 << 16, "256K": 1 << 18, "1M": 1 << 20, "4M": 1 << 22, "16M": 1 << 24}


@dataclasses.dataclass
class Corpus:
    """A text of one kind, and fresh slices of it: none is handed out twice."""

    name: str
    data: bytes
    taken: int = 0
    shuffles: int = 0

    def fresh(self, size: int) -> str:
        """About `size` bytes of text not handed out before; once all is used, the lines come in a new order."""
        if self.taken + size > len(self.data):
            lines = self.data.splitlines(keepends=True)
            random.Random(self.shuffles).shuffle(lines)
            self.data, self.taken, self.shuffles = b"".join(lines), 0, self.shuffles + 1
        if size > len(self.data):  # larger than the corpus: a few differently ordered copies
            parts = [self.data]
            while sum(map(len, parts)) < size:
                lines = self.data.splitlines(keepends=True)
                random.Random(1000 + self.shuffles).shuffle(lines)
                self.shuffles += 1
                parts.append(b"".join(lines))
            self.taken = len(self.data)
            return b"".join(parts)[:size].decode("utf-8", "ignore")
        part = self.data[self.taken : self.taken + size]
        self.taken += size
        return part.decode("utf-8", "ignore")


def corpora(directory: str | None, only: list[str] | None = None) -> list[Corpus]:
    """The .txt files of a directory; without one, English, code and Chinese that every Python installation can make."""
    if directory:
        files = sorted(Path(directory).glob("*.txt"))
        return [Corpus(f.stem, f.read_bytes()) for f in files if not only or f.stem in only]
    made = {"english": _english, "code": _code, "chinese": _chinese}
    return [Corpus(name, make()) for name, make in made.items() if not only or name in only]


def _english() -> bytes:
    """The Python language reference, as `pydoc` carries it."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[k] for k in sorted(topics.topics)).encode()


def _code(limit: int = 24 << 20) -> bytes:
    """Sources of the standard library."""
    parts, total = [], 0
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in file.parts:
            continue
        data = file.read_bytes().decode("utf-8", "ignore").encode()
        parts.append(data)
        total += len(data)
        if total > limit:
            break
    return b"".join(parts)


def _chinese(size: int = 4 << 20) -> bytes:
    """Generated: the Han words of the embedded vocabulary by a Zipf law, with punctuation; no real sentence."""
    from toktier.embedded import load_ranks

    words = []
    for token in sorted(load_ranks("o200k_base").items(), key=lambda item: item[1]):
        try:
            word = token[0].decode()
        except UnicodeDecodeError:
            continue
        if all("\u4e00" <= c <= "\u9fff" for c in word):
            words.append(word)
    rng = np.random.default_rng(0)
    weight = 1 / np.arange(20, 20 + len(words))
    drawn = rng.choice(len(words), size // 6, p=weight / weight.sum())
    marks = rng.choice(["", "", "", "", "", "", "，", "，", "。", "。\n", "、", "：“"], len(drawn))
    text = "".join(words[w] + m for w, m in zip(drawn.tolist(), marks.tolist(), strict=True))
    return text.encode()[:size].decode("utf-8", "ignore").encode()


def separate(tok: Any) -> Any:
    """A second tokenizer of the same kind that shares no parts with it.

    An engine remembers the pieces it has seen.  Engines that take turns on one text must not find them known because
    another of them, within the same parts, was first.
    """
    from toktier.core import Core

    other = type(tok)(tok._source)
    other._core = Core(tok._source)
    return other


def service_options(parser: argparse.ArgumentParser, result: str) -> None:
    """The options of benchmarks of a service: --targets, --seed, --json (of the file named `result`), --plots."""
    parser.add_argument("--targets", nargs="+", type=float, default=[0.010, 0.050], help="seconds, P99")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "out" / result)
    parser.add_argument("--plots", type=Path, help="a folder for plots")


def write_json(file: Path, value: Any) -> None:
    """A result, in a folder that is made if need be."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1))


Call = Callable[[str], Any]


def turns(engines: dict[str, Call], texts: Iterator[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each engine on each of `rounds` texts, the engines taking turns and each round in another order."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    names = list(engines)
    for k in range(rounds):
        text = next(texts)
        for name in names[k % len(names) :] + names[: k % len(names)]:
            gc.collect()
            begin = time.perf_counter()
            engines[name](text)
            times[name].append(time.perf_counter() - begin)
    return times


def median(values: list[float]) -> float:
    """Median, NaN where there is nothing."""
    return statistics.median(values) if values else float("nan")


def seconds(value: float) -> str:
    """A duration with a fitting unit."""
    if value != value:
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


@functools.cache
def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = platform.processor() or "unknown"
    if (info := Path("/proc/cpuinfo")).exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    import toktier

    versions = {"toktier": toktier.__version__}
    for package in ("jax", "jaxlib", "numpy", "tokenizers", "tiktoken"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "system": platform.platform(),
        **versions,
    }


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """A table in Markdown, columns aligned; columns that say nothing are left out."""
    kept = [i for i in range(len(header)) if not rows or any(row[i] != "-" for row in rows)]
    header, rows = [header[i] for i in kept], [[row[i] for i in kept] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for k, row in enumerate([header, *rows]):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |", flush=True)
        if k == 0:
            print("|" + "|".join("-" * (w + 2) for w in widths) + "|")
