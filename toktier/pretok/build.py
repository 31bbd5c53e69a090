"""From a pre-tokenizer to its proven core: classes, learning, merging of symbols, conformance, honesty of symbols."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from toktier.pretok import seamed, written
from toktier.pretok.assemble import Core, assemble
from toktier.pretok.blackbox import Blackbox, open_blackbox
from toktier.pretok.classes import Classes, literal_texts, probe, two_stage
from toktier.pretok.failure import LearnError
from toktier.pretok.honest import HonestCheck, inner_masks
from toktier.pretok.learn import Bimachine, Word, learn, merge_symbols, shrink_tests
from toktier.pretok.verify import Comparer, Plan, count_words

LOAD_PLAN = Plan(1, 1, 1)
_LEARNING_PLAN = Plan(1, 1, 0)  # before symbols are merged


class Built(NamedTuple):
    """A proven core and the evidence: the machine with its words, the plan, counts of words asked, seconds."""

    core: Core
    machine: Bimachine
    classes: Classes
    plan: Plan
    words: dict[str, int]
    asked: int
    points_checked: int
    seconds: float


def build(
    form: Any,
    reference: str,
    plan: Plan | Callable[[Bimachine], Plan] = LOAD_PLAN,
    thorough: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Built:
    """Learn and prove the tables of a normal form (toktier/pretok/form.py).

    `plan` is the W-method's, or chooses it for the machine; `thorough`: every code point is compared with its
    representative in contexts that tell all symbols apart.  Raises `LearnError` with the reason where that fails.
    """
    say = progress or (lambda text: None)
    begin = time.perf_counter()
    box = open_blackbox(form, reference)
    classes = probe(form, reference, say)
    rng = np.random.default_rng(2024)
    asked = 0
    for _ in range(8):
        inner = inner_masks(form, box, classes.representatives)
        machine, used, kept, number, count = _learn_merged(box, classes, inner, literal_texts(form), plan, rng, say)
        asked += count
        representatives = "".join(classes.representatives[i] for i in kept)
        label = number[classes.label]
        say("code points")
        check = HonestCheck(box, machine, representatives, label, inner[kept])
        odd = check.odd_points(thorough, say)
        if not len(odd):
            block, symbol = two_stage(label)
            core = Core(block, symbol, machine.left_next, machine.right_next, machine.out, inner[kept], representatives)
            core = _with_patterns(form, core, machine, used, say)
            seconds = time.perf_counter() - begin
            return Built(core, machine, classes, used, count_words(machine, used), asked, check.asked, seconds)
        classes = _split_off(classes, odd)
    raise LearnError("pretokenizer: characters of one class keep behaving differently")


def _with_patterns(form: Any, core: Core, machine: Bimachine, plan: Plan, say: Callable[[str], None]) -> Core:
    """The patterns for short texts, if there are any and they are proven equal to the automata."""
    tables = assemble(core)
    pattern = written.derive(form, tables)
    if not pattern:
        return core
    say("pattern for short texts")
    if written.counterexamples(pattern, tables, machine, plan):
        return core
    core = core._replace(written=pattern)
    sewn = seamed.derive(pattern, tables.n_symbols)
    if sewn is None or seamed.counterexamples(sewn, tables, machine, plan):
        return core
    return core._replace(seamed=str(sewn))


def _learn_merged(
    box: Blackbox,
    classes: Classes,
    inner: np.ndarray,
    literals: list[str],
    plan: Plan | Callable[[Bimachine], Plan],
    rng: np.random.Generator,
    say: Callable[[str], None],
) -> tuple[Bimachine, Plan, list[int], np.ndarray, int]:
    """Learn over all classes, merge equal symbols, prove over the merged ones; go on learning where that fails."""
    points = [np.frombuffer(text.encode("utf-32-le"), np.uint32) for text in literals]
    fine = Comparer(box, classes.representatives, [bytes(classes.label[p].tolist()) for p in points])
    extra: list[Word] = []

    def counterexamples(machine: Bimachine) -> list[Word]:
        for word in extra:
            if fine.ask([word])[0] != machine.marks_of(word):
                return [word]
        return fine.search(machine, _LEARNING_PLAN, rng, 3000)

    for _ in range(20):
        machine = learn(fine.ask, len(classes.representatives), counterexamples, say)
        merged, kept, number = merge_symbols(machine, inner.tolist())
        merged = shrink_tests(merged)
        seeds = [bytes(number[list(seed)].tolist()) for seed in fine.seeds]
        coarse = Comparer(box, "".join(classes.representatives[i] for i in kept), seeds)
        chosen = plan(merged) if callable(plan) else plan
        say(f"proof: {sum(count_words(merged, chosen).values())} words")
        found = coarse.search(merged, chosen, rng, 20000)
        if not found:
            return merged, chosen, kept, number, fine.asked + coarse.asked
        extra += [bytes(kept[x] for x in word) for word in found]
    raise LearnError("pretokenizer: the proof keeps finding counterexamples")


def _split_off(classes: Classes, odd: np.ndarray) -> Classes:
    """Give code points that behave unlike their representative a class of their own, by old class."""
    label = classes.label.astype(np.int64)
    representatives = classes.representatives
    for old in np.unique(label[odd]):
        points = odd[label[odd] == old]
        label[points] = len(representatives)
        representatives += chr(points[0])
    if len(representatives) > 254:
        raise LearnError(f"pretokenizer: {len(representatives)} character classes, more than 254")
    return Classes(label.astype(np.uint8), representatives, classes.digest)
