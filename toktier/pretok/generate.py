"""Learn and prove the stored tables: `python -m toktier.pretok.generate [--only NAME]` writes toktier/data/pretok.xz.

Prints one line a family with what was asked of the reference; docs/proofs.md says what that proves.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

from toktier.pretok.assemble import assemble
from toktier.pretok.build import Built, build
from toktier.pretok.form import parse
from toktier.pretok.learn import Bimachine
from toktier.pretok.store import Entry, key_of, pack, stored
from toktier.pretok.verify import Plan, count_words

DATA = Path(__file__).parent.parent / "data"
BUDGET = 1_000_000  # words of the largest set: the number of extra states allowed is as large as this lets it be


def families() -> dict[str, tuple[str, str]]:
    """Name -> (reference, pre-tokenizer as in `Spec`) of the families that the package stores."""
    listed = json.loads((DATA / "pretok_families.json").read_text())
    return {f["name"]: (f["reference"], json.dumps(f["pretokenizer"])) for f in listed}


def prove(pretokenizer: str, reference: str, progress: Any = None, budget: int = BUDGET) -> Built:
    """Learn, then prove with as many extra states as the budget of words lets us allow (two at least)."""

    def plan(machine: Bimachine) -> Plan:
        chosen = Plan(2, 2, 2)
        for extra in range(3, 7):
            wider = Plan(extra, extra, extra)
            if max(count_words(machine, wider).values()) > budget:
                break
            chosen = wider
        return chosen

    return build(parse(pretokenizer)[0], reference, plan, thorough=True, progress=progress)


def main() -> None:
    """Write the data file; families not asked for are kept as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated family names")
    parser.add_argument("--budget", type=int, default=BUDGET, help="words of the largest set")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    known = families()
    wanted = set(options.only.split(",")) if options.only else set(known)
    entries = dict(stored()) if options.only else {}
    target = DATA / "pretok.xz"
    sizes = ("S", "QL", "QR", "ML", "MR", "k")
    print(
        f"{'family':18} {'engine':10} " + " ".join(f"{x:>4}" for x in sizes) + f" {'words':>9} {'points':>9} {'s':>6}"
    )
    for name, (reference, pretokenizer) in known.items():
        if name not in wanted:
            continue
        say = (lambda text: print(text, file=sys.stderr)) if options.verbose else None
        built = prove(pretokenizer, reference, say, options.budget)
        tables = assemble(built.core)
        words = sum(built.words.values())
        proof = {"plan": list(built.plan), "words": built.words, "asked": built.asked, "points": built.points_checked}
        version = importlib.metadata.version(reference)
        form, _ = parse(pretokenizer)
        entries[key_of(form, reference)] = Entry(built.core, name, reference, version, built.classes.digest, proof)
        automata = (tables.left_next, tables.right_next, tables.left_elements, tables.right_elements)
        shape = (tables.n_symbols, *map(len, automata), built.plan.total)
        print(
            f"{name:18} {reference:10} {' '.join(f'{x:4}' for x in shape)} {words:9} {built.points_checked:9} "
            f"{built.seconds:6.1f}",
            flush=True,
        )
        target.write_bytes(pack(entries))
    print(f"{len(entries)} families, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
