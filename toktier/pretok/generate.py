"""Learn and prove the stored tables: `python -m toktier.pretok.generate` writes toktier/data/pretok.xz.

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


HEADER = f"{'family':18} {'engine':10}   S  QL  QR   ML   MR  k {'words':>9} {'points':>9}"


def line(entry: Entry) -> str:
    """One line of figures about a stored entry, under `HEADER`."""
    tables = assemble(entry.core)
    automata = len(tables.left_next), len(tables.right_next), len(tables.left_elements), len(tables.right_elements)
    left, right, left_elements, right_elements = automata
    words, points = sum(entry.proof["words"].values()), entry.proof["points"]
    return (
        f"{entry.name:18} {entry.reference:10} {tables.n_symbols:3} {left:3} {right:3} {left_elements:4} "
        f"{right_elements:4} {entry.proof['plan'][2]:2} {words:9} {points:9}"
    )


def main() -> None:
    """Write the data file; families not asked for are kept as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated family names")
    parser.add_argument("--budget", type=int, default=BUDGET, help="words of the largest set")
    parser.add_argument("--show", action="store_true", help="print what is stored and stop")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    print(HEADER)
    if options.show:
        print("\n".join(map(line, stored().values())))
        return
    known = families()
    wanted = set(options.only.split(",")) if options.only else set(known)
    entries = dict(stored()) if options.only else {}
    target = DATA / "pretok.xz"
    for name in [name for name in known if name in wanted]:
        reference, pretokenizer = known[name]
        say = (lambda text: print(text, file=sys.stderr)) if options.verbose else None
        built = prove(pretokenizer, reference, say, options.budget)
        proof = {"plan": list(built.plan), "words": built.words, "asked": built.asked, "points": built.points_checked}
        version = importlib.metadata.version(reference)
        entry = Entry(built.core, name, reference, version, built.classes.digest, proof)
        entries[key_of(parse(pretokenizer)[0], reference)] = entry
        print(f"{line(entry)} {built.seconds:6.1f} s", flush=True)
        target.write_bytes(pack(entries))
    print(f"{len(entries)} families, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
