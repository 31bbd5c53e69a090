"""What a compiled program is made of: kernels, loops and branches, counted in the text of its optimized HLO.

Each instruction of a computation that is not inlined into another (a fusion's body, a reduction's combiner) is a
kernel, unless it only names or groups values.  XLA's text form is no stable interface: for tests and benchmarks only.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?[\w.\-]+ = .*?[\]})] ([a-z][a-z0-9\-]*)\((.*)$", re.MULTILINE)
_CALLED = re.compile(r"(?:body|condition|true_computation|false_computation|to_apply)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CONTROL = ("while", "conditional", "call", "after-all", "add-dependency", "opt-barrier", "partition-id", "replica-id")
_FREE = frozenset((*_CONTROL, "parameter", "constant", "tuple", "get-tuple-element", "bitcast"))
_FOLLOWED = frozenset(("while", "conditional", "call", "async-start"))


class Kernels(NamedTuple):
    """kernels: instructions that run something; loops: `while`; branches: `conditional`; by_kind: kernels by opcode.

    One for each place in the program, however often a loop runs it.
    """

    kernels: int
    loops: int
    branches: int
    by_kind: dict[str, int]


def count(text: str) -> Kernels:
    """Counts in the optimized HLO, `jitted.lower(...).compile().as_text()`."""
    entry, bodies = _computations(text)
    kinds: Counter[str] = Counter()
    waiting, seen = [entry], {entry}
    while waiting:
        for kind, rest in _INSTRUCTION.findall(bodies[waiting.pop()]):
            kinds[kind] += 1
            if kind not in _FOLLOWED:
                continue
            called = _CALLED.findall(rest)
            for branches in _BRANCHES.findall(rest):
                called += [name.strip().lstrip("%") for name in branches.split(",")]
            fresh = [name for name in called if name in bodies and name not in seen]
            seen.update(fresh)
            waiting += fresh
    run = {kind: n for kind, n in sorted(kinds.items(), key=lambda item: -item[1]) if kind not in _FREE}
    return Kernels(sum(run.values()), kinds["while"], kinds["conditional"], run)


def _computations(text: str) -> tuple[str, dict[str, str]]:
    """The name of the entry computation, and the text of each."""
    entry, bodies = "", {}
    for head in _HEAD.finditer(text):
        name = head.group(2)
        end = text.find("\n}", head.end())
        bodies[name] = text[head.end() : end]
        if head.group(1):
            entry = name
    if not entry:
        raise ValueError("text has no ENTRY computation; pass the text of a compiled program")
    return entry, bodies
