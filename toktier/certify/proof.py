"""The checks of docs/proofs.md on stored tables, against the reference that is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from toktier.certify.machine import ProofError, bimachine
from toktier.pretok import seamed, written
from toktier.pretok.assemble import Core, assemble
from toktier.pretok.blackbox import open_blackbox
from toktier.pretok.classes import literal_texts
from toktier.pretok.form import parse
from toktier.pretok.honest import HonestCheck, inner_masks
from toktier.pretok.learn import Bimachine, Word
from toktier.pretok.tables import PretokTables
from toktier.pretok.verify import Comparer, Plan, count_words

Progress = Callable[[str, int, int], None]  # stage, done since the last call, total (0: not known)

QUICK = Plan(1, 1, 1)
_BUDGET = 1_000_000  # words of the largest set; as many extra states are allowed as this lets be
_CUT_BUDGET = {True: 40_000, False: 400_000}  # texts with a cut in them
_RANDOM = 20_000


class Proof(NamedTuple):
    """One check: what was shown, in which numbers, and what contradicts it (empty: it holds)."""

    name: str
    says: str
    counts: dict[str, Any]
    failures: list[str]


def prove(tables: PretokTables, pretokenizer: str, reference: str, quick: bool, progress: Progress) -> list[Proof]:
    """All checks of one pre-tokenizer, the cheap ones first; a failed one ends the run."""
    proofs: list[Proof] = []
    progress("derived tables", 0, 0)
    proofs.append(_derived(tables))
    try:
        machine = bimachine(tables)
    except ProofError as e:
        proofs.append(Proof("automata", "every state is reached and told from every other", {}, [str(e)]))
        return proofs
    checks = (_conformance, _code_points, _cuts, _pattern)
    for check in checks:
        if proofs[-1].failures:
            break
        proofs.append(check(tables, machine, parse(pretokenizer)[0], reference, quick, progress))
    return proofs


def label_of(tables: PretokTables) -> np.ndarray:
    """[0x110000]: the symbol of every code point."""
    points = np.arange(0x110000)
    return tables.symbol[tables.block[points >> 8].astype(np.int64) * 256 + (points & 255)]


def plan_for(machine: Bimachine, quick: bool) -> Plan:
    """How many extra states are allowed: one if quick, else two, or more where that costs little."""
    if quick:
        return QUICK
    chosen = Plan(2, 2, 2)
    for extra in range(3, 7):
        wider = Plan(extra, extra, extra)
        if max(count_words(machine, wider).values()) > _BUDGET:
            break
        chosen = wider
    return chosen


def _derived(tables: PretokTables) -> Proof:
    """Monoids, cuts and digest must follow from the automata."""
    fields = {name: getattr(tables, name) for name in Core._fields}
    again = assemble(Core(**fields), tables.prefix_space)
    names = ("left_elements", "left_product", "left_symbol", "right_elements", "right_product", "right_symbol", "cut")
    wrong = [name for name in names if not np.array_equal(getattr(tables, name), getattr(again, name))]
    wrong += ["digest"] if tables.digest != again.digest else []
    return Proof(
        "derived tables",
        "monoids, certified cuts and digest follow from the two automata and the output table",
        {"tables": len(names)},
        [f"{name} is not what the automata give" for name in wrong],
    )


def _conformance(
    tables: PretokTables, machine: Bimachine, form: Any, reference: str, quick: bool, progress: Progress
) -> Proof:
    plan = plan_for(machine, quick)
    words = count_words(machine, plan)
    total = sum(words.values())
    label = label_of(tables)
    seeds = []
    for text in literal_texts(form):
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        seeds.append(bytes(label[points].tolist()))
    comparer = Comparer(open_blackbox(form, reference), tables.representatives, seeds)
    progress("conformance", 0, total)
    wrong = comparer.search(
        machine,
        plan,
        np.random.default_rng(7),
        _RANDOM // 4 if quick else _RANDOM,
        lambda _, done: progress("conformance", done, total),
    )
    shown = ["".join(tables.representatives[x] for x in word) for word in wrong]
    return Proof(
        "conformance",
        f"equal to the reference on every text over the symbols, if no more than {plan.left} states are missing on "
        f"the left, {plan.right} on the right and {plan.total} in all (docs/proofs.md)",
        {
            "method": "W-method",
            "extra_states": plan._asdict(),
            "words": words,
            "words_asked": comparer.asked,
            "left_access_words": len(machine.left_words),
            "right_access_words": len(machine.right_words),
            "left_tests": len(machine.left_tests),
            "right_tests": len(machine.right_tests),
        },
        [f"the reference cuts {text!r} differently" for text in shown],
    )


def _code_points(
    tables: PretokTables, machine: Bimachine, form: Any, reference: str, quick: bool, progress: Progress
) -> Proof:
    box = open_blackbox(form, reference)
    inner = inner_masks(form, box, tables.representatives)
    check = HonestCheck(box, machine, tables.representatives, label_of(tables), inner)
    progress("code points", 0, 0)
    odd = check.odd_points(not quick, lambda _: progress("code points", 1, 0)).tolist()
    failures = [f"U+{point:04X} does not behave as its symbol's representative" for point in odd[:20]]
    if not np.array_equal(inner, tables.inner):
        failures.append("the pieces that begin inside a character are not the reference's")
    how = "4,096 code points of each symbol in random texts" if quick else "each twice in random texts and in contexts"
    return Proof(
        "code points",
        f"every code point behaves as the representative of its symbol ({how})",
        {"code_points": 0x110000 - 0x800, "thorough": not quick, "texts_asked": check.asked, "odd": len(odd)},
        failures,
    )


def _cuts(
    tables: PretokTables, machine: Bimachine, form: Any, reference: str, quick: bool, progress: Progress
) -> Proof:
    """Both sides of a certified pair split apart as they do together: all contexts up to a length that is paid for."""
    pairs = np.argwhere(tables.cut)
    says = "a text cut at a certified pair is split as its two sides are"
    if not len(pairs):
        return Proof("cuts", says, {"pairs": 0}, [])
    box = open_blackbox(form, reference)
    points = np.array([ord(c) for c in tables.representatives], np.uint32)
    n, budget = tables.n_symbols, _CUT_BUDGET[quick]
    before, behind = [0], [0]  # lengths of the contexts
    for side in (before, behind, before, behind):
        width = sum(n**k for k in before) * sum(n**k for k in behind) * n ** (side[-1] + 1) // n ** side[-1]
        if width * len(pairs) <= budget:
            side.append(side[-1] + 1)
    total = len(pairs) * sum(n**k for k in before) * sum(n**k for k in behind)
    progress("cuts", 0, total)
    failures: list[str] = []
    for a in before:
        for b in behind:
            left, right = _all_words(n, a), _all_words(n, b)
            for x, y in pairs.tolist():
                u = np.column_stack([left, np.full(len(left), x, np.uint8)])
                v = np.column_stack([np.full(len(right), y, np.uint8), right])
                together = np.column_stack([np.repeat(u, len(v), 0), np.tile(v, (len(u), 1))])
                claim = np.column_stack(
                    [np.repeat(machine.marks(u), len(v), 0), np.tile(machine.marks(v), (len(u), 1))]
                )
                truth = box.marks(points[together], claim)
                apart = np.column_stack(
                    [
                        np.repeat(_asked(box, points, machine, u), len(v), 0),
                        np.tile(_asked(box, points, machine, v), (len(u), 1)),
                    ]
                )
                for row in np.flatnonzero((truth != apart).any(1))[:3]:
                    word = "".join(tables.representatives[s] for s in together[row])
                    failures.append(f"{word!r} cannot be cut between {word[a]!r} and {word[a + 1]!r}")
                progress("cuts", len(together), total)
    counts = {"pairs": len(pairs), "context_before": before[-1], "context_behind": behind[-1], "texts_asked": total}
    return Proof("cuts", says, counts, failures[:20])


def _pattern(
    tables: PretokTables, machine: Bimachine, form: Any, reference: str, quick: bool, progress: Progress
) -> Proof:
    """The patterns for short texts are compared with the automata, which are proven by now."""
    plan = plan_for(machine, quick)
    sewn = seamed.proven(tables)
    total = sum(count_words(machine, plan).values()) * (bool(tables.written) + (sewn is not None))
    progress("pattern", 0, total)
    wrong: list[Word] = []
    failures = ["the pattern with seams is not what is derived"] if tables.seamed and sewn is None else []
    if tables.written:
        wrong += written.counterexamples(
            tables.written, tables, machine, plan, lambda _, n: progress("pattern", n, total)
        )
    if sewn:
        wrong += seamed.counterexamples(sewn, tables, machine, plan, lambda _, n: progress("pattern", n, total))
    shown = ["".join(tables.representatives[x] for x in word) for word in wrong]
    return Proof(
        "pattern",
        "the patterns that find the pieces of short texts cut as the automata do, under the same assumption"
        if tables.written
        else "there is no pattern for short texts: they take the automata too",
        {"extra_states": plan._asdict(), "words": total},
        failures + [f"a pattern cuts {text!r} differently" for text in shown],
    )


def _asked(box: Any, points: np.ndarray, machine: Bimachine, words: np.ndarray) -> np.ndarray:
    return box.marks(points[words], machine.marks(words))


def _all_words(n: int, length: int) -> np.ndarray:
    """uint8[n ** length, length]: every word of this length."""
    number = np.arange(n**length)
    return np.column_stack([number // n**k % n for k in range(length)] or [np.zeros((1, 0))]).astype(np.uint8)
