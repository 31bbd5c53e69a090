"""`certify`: everything that is known and shown about a tokenizer, as data and as text."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import time
from typing import Any

import toktier
from toktier.certify import vocabulary
from toktier.certify.proof import Progress, Proof, label_of, prove
from toktier.explain import part_lines
from toktier.pretok import store
from toktier.pretok.form import parse
from toktier.pretok.tables import PretokTables
from toktier.tokenizer import Tokenizer

_MOST_ROWS = 16  # of the cut table, for a person
EXACT, FAILED, ON_REFERENCE = 0, 1, 3


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What `certify` found.

    Attributes:
      report: JSON-ready, the whole of it.
      proofs: the checks that were run.
      status: 0 exact on toktier's engines, 1 a check failed, 3 the reference runs this tokenizer.
    """

    report: dict[str, Any]
    proofs: tuple[Proof, ...]
    status: int


def certify(tokenizer: Tokenizer, quick: bool = False, progress: Progress | None = None) -> Certificate:
    """Run the checks of docs/proofs.md on the tables of a tokenizer, and describe all of it.

    Args:
      tokenizer: from `toktier.load`.
      quick: one extra state instead of two or more, and a sample of the code points.
      progress: is told a stage, the steps done since the last call, and their total (0: not known).
    """
    say = progress or (lambda stage, done, total: None)
    begin = time.perf_counter()
    spec, explained = tokenizer.spec, tokenizer.explain()
    report = _head(tokenizer)
    proofs: list[Proof] = []
    if not explained.reason:
        pretok, bpe = tokenizer.core.tables.pretok, tokenizer.core.tables.bpe
        report["pre_tokenizer"] |= _automata(pretok, spec.pretokenizer, spec.reference)
        say("vocabulary", 0, 0)
        report["vocabulary"] |= vocabulary.describe(spec, bpe, pretok)
        report["cut_table"] = _cut_table(pretok)
        proofs = prove(pretok, spec.pretokenizer, spec.reference, quick, say)
    failed = [f"{p.name}: {f}" for p in proofs for f in p.failures]
    status = ON_REFERENCE if explained.reason else FAILED if failed else EXACT
    verdict = {EXACT: "exact", FAILED: "a proof failed", ON_REFERENCE: "runs on the reference"}[status]
    report |= {
        "quick": quick,
        "proofs": [p._asdict() | {"holds": not p.failures} for p in proofs],
        "failures": failed,
        "verdict": verdict,
        "status": status,
        "seconds": round(time.perf_counter() - begin, 2),
    }
    return Certificate(report, tuple(proofs), status)


def _head(tokenizer: Tokenizer) -> dict[str, Any]:
    from toktier.cli import known

    spec, explained = tokenizer.spec, tokenizer.explain()
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    inside = sum(1 for t in spec.added if t.id < spec.n_ids and spec.token_bytes(t.id))
    return {
        "name": spec.name,
        "digest": spec.digest,
        "family": known.family(spec.pretokenizer),
        "versions": {
            "toktier": toktier.__version__,
            spec.reference: spec.reference_version,
            "numpy": importlib.metadata.version("numpy"),
            "jax": _version("jax"),
        },
        "reference": spec.reference,
        "reason": explained.reason,
        "engine": explained.engine,
        "parts": [dataclasses.asdict(part) for part in explained.parts],
        "normalizer": {"kind": tokenizer.core.normalizer.kind, "config": json.loads(spec.normalizer)},
        "pre_tokenizer": {"config": json.loads(spec.pretokenizer)},
        "added_tokens": {
            "count": len(spec.added),
            "also_in_the_model": inside,
            "flags": {f: sum(bool(getattr(t, f)) for t in spec.added) for f in flags},
        },
        "vocabulary": {"ids": tokenizer.vocab_size, "ignore_merges": spec.ignore_merges},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _automata(tables: PretokTables, pretokenizer: str, reference: str) -> dict[str, Any]:
    entry = store.stored().get(store.key_of(parse(pretokenizer)[0], reference))
    sizes = [int(n) for n in _symbol_sizes(tables)]
    return {
        "tables": tables.digest,
        "stored_as": entry.name if entry is not None and entry.version == _version(reference) else "",
        "symbols": tables.n_symbols,
        "symbol_sizes": dict(zip(tables.representatives, sizes, strict=True)),
        "left_states": len(tables.left_next),
        "right_states": len(tables.right_next),
        "left_monoid": len(tables.left_product),
        "right_monoid": len(tables.right_product),
        "cuts_inside_characters": bool(tables.inner.any()),
        "drops_characters": bool((tables.out == 2).any()),
        "prefix_space": bool(tables.prefix_space),
    }


def _symbol_sizes(tables: PretokTables) -> Any:
    import numpy as np

    label = label_of(tables)
    counts = np.bincount(label, minlength=tables.n_symbols)
    return counts - np.bincount(label[0xD800:0xE000], minlength=tables.n_symbols)


def _cut_table(tables: PretokTables) -> dict[str, Any]:
    symbols = tables.representatives
    behind = {x: "".join(symbols[j] for j in range(len(symbols)) if tables.cut[i, j]) for i, x in enumerate(symbols)}
    return {"certified": int(tables.cut.sum()), "of": int(tables.cut.size), "may_stand_behind": behind}


def readable(report: dict[str, Any]) -> str:
    """The report for a person."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    vocabulary_, added = report["vocabulary"], report["added_tokens"]
    flags = ", ".join(f"{n} {flag}" for flag, n in added["flags"].items() if n)
    lines = [
        f"{report['name']}: {report['verdict']}",
        f"  digest         {report['digest']}",
        f"  family         {report['family']}",
        f"  versions       {versions}",
    ]
    if report["reason"]:
        lines.append(f"  because        {report['reason']}")
    else:
        lines += _machine_lines(report)
    lines += [
        f"  normalizer     {report['normalizer']['kind']}",
        f"  added tokens   {added['count']}, {added['also_in_the_model']} of them in the model"
        + (f" ({flags})" if flags else ""),
    ]
    if not report["reason"]:
        merges = vocabulary_["merges"]
        lines += [
            f"  vocabulary     {vocabulary_['tokens']} tokens, {vocabulary_['unreachable']} that no text reaches "
            f"({vocabulary_['not_made_by_their_merges']} are not made by their own merges, "
            f"{vocabulary_['of_these_only_as_a_whole_piece']} of those only as a whole piece; "
            f"{vocabulary_['cut_by_the_pre_tokenizer']} are always cut)",
            f"  missing bytes  {' '.join(vocabulary_['missing_bytes']) or 'none'}",
            f"  merges         {merges['pairs']} pairs, {merges['effective']} can happen; "
            f"{merges['before_their_parts']} rank before a part of theirs, {merges['not_orderly']} go one at a time",
        ]
    lines += part_lines(report["parts"])
    if report["proofs"]:
        lines.append(f"  shown in {report['seconds']} s" + (" (quick)" if report["quick"] else ""))
    for proof in report["proofs"]:
        lines.append(f"    {'holds' if proof['holds'] else 'FAILS'}  {proof['name']}: {proof['says']}")
        counts = ", ".join(f"{k} {v}" for k, v in proof["counts"].items())
        lines.append(f"           {counts}" if counts else "")
        lines += [f"           {failure}" for failure in proof["failures"]]
    return "\n".join(line for line in lines if line)


def _machine_lines(report: dict[str, Any]) -> list[str]:
    pre, cuts = report["pre_tokenizer"], report["cut_table"]
    lines = [
        f"  automata       {pre['symbols']} symbols, {pre['left_states']} left and {pre['right_states']} right states, "
        f"monoids of {pre['left_monoid']} and {pre['right_monoid']} elements",
        f"  tables         {pre['tables'][:16]}, "
        + (f"stored as {pre['stored_as']}" if pre["stored_as"] else "learned"),
        f"  cuts           {cuts['certified']} of {cuts['of']} symbol pairs",
    ]
    rows: dict[str, list[str]] = {}  # symbols that may be cut off from the same ones
    for x, behind in cuts["may_stand_behind"].items():
        rows.setdefault(behind, []).append(x)
    if len(rows) > _MOST_ROWS:
        return [*lines, "                 (--json lists them)"]
    for behind, fronts in rows.items():
        if behind:
            lines.append(f"    {' '.join(map(_name, fronts))} | {' '.join(map(_name, behind))}")
    return lines


def _name(character: str) -> str:
    return repr(character)[1:-1] if character.isascii() and character != " " else f"U+{ord(character):04X}"
