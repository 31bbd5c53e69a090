"""What the shadow verifier finds, how soon, and what it costs the request path.

campaign  requests of sessions (and some without) go through a real tier; into some of the delivered ids a fault of five
          kinds is planted before the verifier is told of them.  At each sampling rate: faults sampled, caught and
          missed, and alarms over results that were right.
delay     the number of faulty requests until the first catch, over many seeded sampling runs on the campaign's own
          verdicts, beside the geometric law; as a table and a plot.
cost      what `offer` costs the thread that calls it.

Exit status 1 where a sampled fault was missed, a right result raised an alarm, or a sample was dropped.

    python benchmarks/verifier.py
    python benchmarks/verifier.py --requests 300 --faults 60 --runs 500 --tokenizer o200k_base
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import logging
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _common import corpora, machine, print_table, seconds
from _texts import prose, tokenizers

from toktier.testing.delivered import KINDS, DeliveredFaults
from toktier.tier import Thresholds, Tier, Verifier
from toktier.tier.handover import Sampler

if TYPE_CHECKING:
    from toktier.tier.mismatch import Mismatch
    from toktier.tokenizer import Tokenizer

PARTS = ("campaign", "delay", "cost")
SCRIPTS = ("latin", "cyrillic", "arabic", "devanagari", "thai", "japanese", "chinese", "korean")
_MADE = ("english", "code")  # real text, which a Python installation carries
OUT = Path(__file__).parent / "out"
_NEVER = 1 << 40  # bytes: no text is that long


def main(argv: list[str] | None = None) -> int:
    """Run the parts asked for; 1 where the verifier failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--faults", type=int, default=434, help="planted among them")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 0.1, 0.05])
    parser.add_argument("--runs", type=int, default=10_000, help="sampling runs for the delay")
    parser.add_argument("--tokenizer", action="append", help="instead of the embedded ones and five families")
    parser.add_argument("--texts", nargs="+", choices=[*SCRIPTS, *_MADE], default=[*SCRIPTS, *_MADE])
    parser.add_argument("--device", type=int, default=_NEVER, help="bytes from which on the tier uses the device")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT, help="directory of verifier.json and verifier.png")
    args = parser.parse_args(argv)
    if args.faults > args.requests:
        parser.error(f"--faults {args.faults} do not fit into --requests {args.requests}")
    logging.getLogger("toktier.tier.verifier").setLevel(logging.CRITICAL)  # hundreds of alarms are what is wanted here
    print(f"{machine()}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    parts = args.only or PARTS
    result: dict[str, Any] = {"machine": machine(), "seed": args.seed}
    failed = False
    if "campaign" in parts or "delay" in parts:
        found = campaign(loaded(args.tokenizer), args)
        result["campaign"] = [dataclasses.asdict(run) for run in found]
        failed = any(run.failed for run in found)
        if "delay" in parts and found[0].rate == 1.0:
            result["delay"] = delay(found[0], args)
    if "cost" in parts:
        result["cost"] = cost(args.seed)
    (args.out / "verifier.json").write_text(json.dumps(result, indent=1))
    return int(failed)


def loaded(names: list[str] | None) -> dict[str, Tokenizer]:
    """The tokenizers by name."""
    import toktier

    return {name: toktier.load(name) for name in names} if names else dict(tokenizers())


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Request:
    """One call of the tier: `kind` is "encode", "create", "append", "edit", "update" or "rollback"."""

    kind: str
    tokenizer: str
    session: str
    text: str
    share: float = 0.0  # where in the session's text an edit begins


class Texts:
    """Text of many languages, and code; every slice is new until all is used."""

    def __init__(self, kinds: list[str], seed: int) -> None:
        self._rng = random.Random(seed)
        self._source = functools.cache(self._made)
        self._seed = seed
        self.kinds = kinds

    def take(self, kind: str, count: int) -> str:
        """About `count` characters from anywhere in a source."""
        source = self._source(kind)
        at = self._rng.randrange(max(1, len(source) - count))
        return source[at : at + count]

    def _made(self, kind: str) -> str:
        if kind in _MADE:
            return corpora(None, [kind])[0].data[: 4 << 20].decode("utf-8", "ignore")
        return prose(kind, 200_000, self._seed)


def requests(count: int, names: list[str], kinds: list[str], seed: int) -> Iterator[Request]:
    """Requests in the shape of agents' sessions: a first prompt, then loops of appends, with edits and rollbacks.

    Lengths are drawn from log-normal distributions; contexts stay short enough for the reference to check every one.
    """
    rng, texts = random.Random(seed), Texts(kinds, seed)
    made = 0
    for number in itertools.count():
        name, kind, session = names[number % len(names)], rng.choice(texts.kinds), f"s{number}"
        if rng.random() < 0.3:  # a stateless one
            steps = [Request("encode", name, "", texts.take(kind, _length(rng, 2_000)))]
        else:
            steps = [Request("create", name, session, texts.take(kind, _length(rng, 4_000)))]
            for _ in range(1 + int(rng.expovariate(1 / 8))):
                what = rng.choices(["append", "edit", "update", "rollback"], [80, 8, 8, 4])[0]
                count_ = _length(rng, 800) if what == "append" else rng.randint(0, 60)
                mixed = texts.take(rng.choice(texts.kinds) if rng.random() < 0.2 else kind, count_)
                steps.append(Request(what, name, session, mixed, rng.random()))
        for step in steps:
            yield step
            made += 1
            if made == count:
                return


def _length(rng: random.Random, middle: int) -> int:
    return int(min(12_000, max(1, rng.lognormvariate(math.log(middle), 1.0))))


def serve(tier: Tier, request: Request, state: dict[str, str]) -> None:
    """Send a request to the tier; `state` is what its client remembers: the text of each session."""
    text, name, session = request.text, request.tokenizer, request.session
    if request.kind == "encode":
        tier.encode(text, tokenizer=name, special_tokens="text")
        return
    before = state.get(session, "")
    at = int(request.share * len(before))
    if request.kind == "create":
        tier.encode(text, session=session, tokenizer=name)
        state[session] = text
    elif request.kind == "append":
        tier.append(session, text, name)
        state[session] = before + text
    elif request.kind == "edit":
        stop = min(len(before), at + 40)
        tier.edit(session, at, stop, text, name)
        state[session] = before[:at] + text + before[stop:]
    else:  # a changed prompt, sent whole: something put in, or the last of the conversation taken back
        state[session] = before[:at] + text + ("" if request.kind == "rollback" else before[at:])
        tier.update(session, state[session], name)


# -- campaign ----------------------------------------------------------------------------------------------------------


class PlantingVerifier(Verifier):
    """A verifier that is told wrong ids where a fault is planned: what the tier delivered, broken on the way.

    Attributes:
      planted: kind of the fault by number of the request.  sampled, caught: numbers of requests.
    """

    def __init__(self, rate: float, plan: Mapping[int, str], faults: Mapping[str, DeliveredFaults], seed: int) -> None:
        super().__init__(rate, seed=seed, on_alarm=self._caught)
        self._plan, self._faults, self._seed = plan, faults, seed
        self._number = -1
        self._due: list[str] = []
        self.planted: dict[int, str] = {}
        self.sampled: set[int] = set()
        self.caught: set[int] = set()

    def offer(
        self,
        tokenizer: str,
        text: Any,
        ids: Any,
        special_tokens: Any = None,
        add_special_tokens: bool = False,
        request: Any = None,
    ) -> bool:
        """As `Verifier.offer`, with a fault in the ids if this request is to have one."""
        self._number += 1
        self._due += [self._plan[self._number]] if self._number in self._plan else []
        if self._due:  # a result that has no place for its fault (a swap needs two tokens) leaves it to the next
            rng = random.Random(self._seed * 1_000_003 + self._number)
            if (made := self._faults[tokenizer].plant(self._due[0], ids, rng)) is not None:
                self.planted[self._number], ids = self._due.pop(0), made.ids
        taken = super().offer(tokenizer, text, ids, special_tokens, add_special_tokens, self._number)
        if taken:
            self.sampled.add(self._number)
        return taken

    def _caught(self, found: Mismatch) -> None:
        self.caught.add(found.request)


@dataclasses.dataclass
class Run:
    """The result of the campaign at one rate; numbers of requests with their kind of fault."""

    rate: float
    requests: int
    planted: dict[int, str]
    sampled: list[int]
    caught: list[int]
    dropped: int
    errors: int
    checked_bytes: int
    worker_seconds: float
    seconds: float
    paths: dict[str, int]

    @property
    def missed(self) -> int:
        """Faults that were sampled and raised no alarm."""
        return len((set(self.sampled) & set(self.planted)) - set(self.caught))

    @property
    def false_alarms(self) -> int:
        """Alarms over results in which no fault was planted."""
        return len(set(self.caught) - set(self.planted))

    @property
    def failed(self) -> bool:
        """Whether anything is not as it should be."""
        return bool(self.missed or self.false_alarms or self.dropped or self.errors)


def campaign(found: dict[str, Tokenizer], args: argparse.Namespace) -> list[Run]:
    """The same requests with the same faults at every rate."""
    rng = random.Random(args.seed)
    numbers = sorted(rng.sample(range(args.requests), args.faults))
    kinds = [KINDS[k % len(KINDS)] for k in range(args.faults)]
    rng.shuffle(kinds)
    plan = dict(zip(numbers, kinds, strict=True))
    faults = {name: DeliveredFaults(tok) for name, tok in found.items()}
    asked = list(requests(args.requests, list(found), args.texts, args.seed))
    print(f"{args.requests:,} requests of {len(found)} tokenizers, {args.faults} faults planted\n")
    runs = []
    for rate in args.rates:
        run = one_run(rate, found, plan, faults, asked, args)
        runs.append(run)
        show(run)
    return runs


def one_run(
    rate: float,
    found: dict[str, Tokenizer],
    plan: Mapping[int, str],
    faults: Mapping[str, DeliveredFaults],
    asked: list[Request],
    args: argparse.Namespace,
) -> Run:
    """All requests through a tier; where the verifier's queue is nearly full they wait, so that none is dropped."""
    from tqdm import tqdm

    begin = time.perf_counter()
    verifier = PlantingVerifier(rate, plan, faults, args.seed)
    state: dict[str, str] = {}
    thresholds = Thresholds(device=args.device, join=args.device)
    with Tier(found, thresholds=thresholds, verifier=verifier) as tier:
        for request in tqdm(asked, desc=f"{rate:.0%}", disable=None, leave=False):
            serve(tier, request, state)
            while verifier.pending > 48:
                verifier.wait(0.02)
        verifier.wait()
        counts, paths = verifier.stats(), tier.stats()["paths"]
    assert counts["offered"] == len(asked), f"{counts['offered']} results offered for {len(asked)} requests"
    if len(verifier.planted) < len(plan):
        print(f"only {len(verifier.planted)} of {len(plan)} faults found a result to be planted in")
    return Run(
        rate,
        len(asked),
        verifier.planted,
        sorted(verifier.sampled),
        sorted(verifier.caught),
        counts["dropped"],
        counts["errors"],
        counts["checked_bytes"],
        counts["worker_seconds"],
        time.perf_counter() - begin,
        {path: row["requests"] for path, row in paths.items() if row["requests"]},
    )


def show(run: Run) -> None:
    """The table of one rate."""
    sampled, caught = set(run.sampled), set(run.caught)
    rows = []
    planted, looked, seen = (
        Counter(kind for number, kind in run.planted.items() if number in among)
        for among in (run.planted.keys(), sampled, caught)
    )
    for kind in KINDS:
        row = [planted[kind], looked[kind], seen[kind], looked[kind] - seen[kind]]
        rows.append([kind, *(f"{n:,}" for n in row), "-"])
    clean = len(sampled - run.planted.keys())
    totals = [len(run.planted), sum(looked.values()), sum(seen.values()), run.missed]
    rows.append(["all faults", *(f"{n:,}" for n in totals), "-"])
    rows.append(["no fault", "0", f"{clean:,}", "0", "0", f"{run.false_alarms:,}"])
    print(f"sampling {run.rate:.0%}\n")
    print_table(["kind", "planted", "sampled", "caught", "missed of sampled", "false alarms"], rows)
    print(
        f"\n{run.missed} missed of those sampled, {run.false_alarms} false alarms, {run.dropped} dropped, {run.errors} "
        f"errors; paths {run.paths}; the reference encoded {run.checked_bytes / 1e6:.1f} MB in "
        f"{run.worker_seconds:.1f} s of its own CPU, the whole run took {run.seconds:.1f} s\n",
        flush=True,
    )


# -- delay -------------------------------------------------------------------------------------------------------------


def delay(full: Run, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Faulty requests until the first catch, by the verifier's own sampler, beside the geometric law."""
    rates = [rate for rate in args.rates if rate < 1]
    caught = set(full.caught)
    rows: list[dict[str, Any]] = []
    for rate in rates:
        delays = [first_catch(full, caught, Sampler(rate, seed)) for seed in range(args.runs)]
        seen = np.array([d for d in delays if d is not None])
        distance, bound = law_distance(seen, rate), math.sqrt(math.log(2 / 0.01) / (2 * max(1, len(seen))))
        rows.append(
            {
                "rate": rate,
                "runs": args.runs,
                "never": delays.count(None),
                "mean": float(seen.mean()),
                "law_mean": 1 / rate,
                **{f"p{q}": int(np.quantile(seen, q / 100, method="inverted_cdf")) for q in (50, 90, 99)},
                **{f"law_p{q}": law_quantile(q / 100, rate) for q in (50, 90, 99)},
                "distance": distance,
                "bound": bound,
                "counts": np.bincount(seen).tolist(),
            }
        )
    print(f"faulty requests until the first catch, {args.runs:,} sampling runs a rate\n")
    head = ["rate", "", "mean", "median", "P90", "P99", "largest distance", "of chance (99 %)"]
    table = []
    for r in rows:
        found = [f"{r['rate']:.0%}", "found", f"{r['mean']:.1f}", *(str(r[f"p{q}"]) for q in (50, 90, 99))]
        table.append([*found, f"{r['distance']:.4f}", f"{r['bound']:.4f}"])
        law = [f"{r['rate']:.0%}", "law", f"{r['law_mean']:.1f}", *(str(r[f"law_p{q}"]) for q in (50, 90, 99))]
        table.append([*law, "-", "-"])
    print_table(head, table)
    if rows:
        print(f"\n{plot(rows, args.out / 'verifier.png')}\n")
    return rows


def first_catch(full: Run, caught: set[int], sampler: Sampler) -> int | None:
    """How many faulty requests pass until one is sampled and caught; None where none is."""
    faulty = 0
    for number in range(full.requests):
        sampled = sampler()
        if number in full.planted:
            faulty += 1
            if sampled and number in caught:
                return faulty
    return None


def law_quantile(share: float, rate: float) -> int:
    """The smallest n with 1 - (1 - rate)**n >= share."""
    return math.ceil(math.log(1 - share) / math.log(1 - rate) - 1e-9)


def law_distance(seen: np.ndarray, rate: float) -> float:
    """The largest difference of the distribution functions (Kolmogorov's distance)."""
    n = np.arange(1, int(seen.max()) + 1)
    found = np.cumsum(np.bincount(seen, minlength=len(n) + 1)[1:]) / len(seen)
    return float(np.abs(found - (1 - (1 - rate) ** n)).max())


def plot(rows: list[dict[str, Any]], file: Path) -> str:
    """Both distribution functions of each rate; says where the plot is."""
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed"
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for row, colour in zip(rows, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=False):
        counts = np.array(row["counts"])
        found = np.cumsum(counts) / counts.sum()
        n = np.arange(len(counts))
        name = f"{row['rate']:.0%} sampling"
        axes.step(n, found, where="post", color=colour, linewidth=1.8, label=f"{name}, {row['runs']:,} runs")
        axes.plot(
            n, 1 - (1 - row["rate"]) ** n, "k--", linewidth=0.9, label="geometric law" if row is rows[-1] else None
        )
        for quantile in (50, 90):
            at = row[f"p{quantile}"]
            axes.plot(at, quantile / 100, "o", color=colour, markersize=4)
            axes.annotate(str(at), (at, quantile / 100), (5, -11), textcoords="offset points", color=colour, fontsize=8)
    axes.set_xlim(0, max(row["law_p99"] for row in rows))
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("faulty requests delivered")
    axes.set_ylabel("share of runs with a catch")
    axes.set_title("Detection delay of the shadow verifier", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)
    return f"plot in {file}"


# -- cost --------------------------------------------------------------------------------------------------------------


def cost(seed: int) -> list[dict[str, Any]]:
    """Seconds of `offer` on the calling thread, for a text of a million characters."""
    import toktier

    tok = toktier.load("o200k_base")
    source = corpora(None, ["english"])[0]
    text = source.fresh(1_000_000)
    ids = tok.encode(text, special_tokens="text", engine="host")
    ids.flags.writeable = False
    parts = [text[at : at + 4096] for at in range(0, len(text), 4096)]
    ways: dict[str, tuple[float, Any, int]] = {
        "not sampled": (0.0, text, 20_000),
        "sampled, one str": (1.0, text, 40),
        "sampled, in parts": (1.0, parts, 40),
    }
    rows: list[dict[str, Any]] = []
    for way, (rate, given, rounds) in ways.items():
        times = []
        with Verifier(rate, queue=rounds + 1, max_bytes=1 << 30, seed=seed) as verifier:
            verifier.start({"t": tok})
            for _ in range(rounds):
                begin = time.perf_counter()
                verifier.offer("t", given, ids, "text")
                times.append(time.perf_counter() - begin)
            verifier.wait()
            assert verifier.stats()["mismatched"] == 0
        quantiles = {f"p{q}": float(np.percentile(times, q)) for q in (50, 99)}
        rows.append({"way": way, "rounds": rounds, **quantiles, "max": max(times)})
    print("`offer` of a text of a million characters, on the caller's thread\n")
    print_table(
        ["", "calls", "p50", "p99", "max"],
        [[r["way"], str(r["rounds"]), *(seconds(r[k]) for k in ("p50", "p99", "max"))] for r in rows],
    )
    rows.append({"way": "worker", "seconds": checks(seed)})
    return rows


def checks(seed: int) -> dict[str, float]:
    """Seconds of the worker's CPU for a million characters, by reference and text."""
    found = {name: tok for name, tok in tokenizers() if name in ("o200k_base", "llama3")}
    texts = {corpus.name: corpus.fresh(3_300_000)[:1_000_000] for corpus in corpora(None)}
    spent: dict[str, float] = {}
    for name, tok in found.items():
        with Verifier(1.0, max_bytes=1 << 30, seed=seed) as verifier:
            verifier.start({name: tok})
            before = 0.0
            for kind, text in {"": "a", **texts}.items():  # the first one makes the reference
                verifier.offer(name, text, tok.encode(text, special_tokens="text", engine="host"), "text")
                verifier.wait()
                now = verifier.stats()["worker_seconds"]
                spent[f"{tok.spec.reference}, {name}, {kind or 'start'}"] = now - before
                before = now
    print("\nCPU of the worker for a million characters\n")
    print_table(["reference, tokenizer, text", "time"], [[key, seconds(value)] for key, value in spent.items()])
    return spent


if __name__ == "__main__":
    sys.exit(main())
