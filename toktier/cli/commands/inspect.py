"""`toktier inspect`: what a tokenizer is."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from toktier.cli import known, options

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer


@click.command(
    short_help="Show what a tokenizer is and what runs it.",
    epilog="Exit status: 0 done, 1 a source that cannot be loaded, 2 wrong usage.",
)
@click.argument("source", metavar="SOURCE")
@options.rank_file_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object with everything.")
def command(source: str, pattern: str | None, special_tokens_file: str | None, as_json: bool) -> None:
    """Show what SOURCE is: its family, its tables, and which engine runs each part and why.

    SOURCE is what --tokenizer takes elsewhere: an embedded name, a tokenizer.json or its folder, a rank file, a hub id.

    \b
    Examples:
      toktier inspect o200k_base
      toktier inspect ./model/tokenizer.json
      toktier inspect --json ./model | jq .engines
    """
    report = describe(options.load(source, pattern, special_tokens_file))
    click.echo(json.dumps(report, indent=2, ensure_ascii=False) if as_json else readable(report))


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything that `inspect --json` prints."""
    from toktier import routing

    spec, explained = tokenizer.spec, tokenizer.explain()
    flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
    report: dict[str, Any] = {
        "name": spec.name,
        "digest": spec.digest,
        "reference": {"name": spec.reference, "version": spec.reference_version},
        "family": known.family(spec.pretokenizer),
        "pretokenizer": json.loads(spec.pretokenizer),
        "normalizer": json.loads(spec.normalizer),
        "vocabulary": {
            "ids": tokenizer.vocab_size,
            "model_ids": spec.n_ids,
            "merge_rule": spec.merge_rule,
            "ignore_merges": spec.ignore_merges,
            "added": len(spec.added),
            "added_flags": {f: sum(getattr(a, f) for a in spec.added) for f in flags},
        },
        "reason": explained.reason,
        "engines": {"encode": explained.engine},
        "parts": [dataclasses.asdict(part) for part in explained.parts],
    }
    if not explained.reason:
        report["automata"] = _automata(tokenizer)
        report["merges"] = _merges(tokenizer)
        report["engines"]["crossover_bytes"] = {  # null: never
            backend: None if size == routing.NEVER else size for backend, size in routing.CROSSOVER.items()
        }
    return report


def _automata(tokenizer: Tokenizer) -> dict[str, Any]:
    tables = tokenizer.core.tables.pretok
    outcomes = Counter(tables.out.ravel().tolist())
    return {
        "digest": tables.digest,
        "symbols": tables.n_symbols,
        "left_states": len(tables.left_next),
        "right_states": len(tables.right_next),
        "left_monoid": len(tables.left_product),
        "right_monoid": len(tables.right_product),
        "certified_cuts": int(tables.cut.sum()),
        "symbol_pairs": int(tables.cut.size),
        "drops_characters": outcomes[2] > 0,
        "prefix_space": bool(tables.prefix_space),
        "table_bytes": sum(a.nbytes for a in vars(tables).values() if hasattr(a, "nbytes")),
    }


def _merges(tokenizer: Tokenizer) -> dict[str, Any]:
    spec, tables = tokenizer.spec, tokenizer.core.tables.bpe
    present = tables.token_length[: spec.n_ids] > 0
    return {
        "listed": len(spec.merges),
        "effective": len(tables.pairs),
        "out_of_order": int((~tables.orderly).sum()),
        "tokens": int(present.sum()),
        "tokens_never_a_whole_piece": int((present & ~tables.whole[: spec.n_ids]).sum()),
    }


def readable(report: dict[str, Any]) -> str:
    """The report for a person."""
    from toktier.explain import part_lines

    vocabulary, reference = report["vocabulary"], report["reference"]
    flags = ", ".join(f"{n} {f}" for f, n in vocabulary["added_flags"].items() if n)
    lines = [
        f"{report['name']}",
        f"  digest         {report['digest'][:16]}",
        f"  ids as in      {reference['name']} {reference['version']}",
        f"  family         {report['family']}",
        f"  vocabulary     {vocabulary['ids']} ids, {vocabulary['added']} of them added tokens"
        + (f" ({flags})" if flags else ""),
    ]
    if report["reason"]:
        lines.append(f"  engine         reference: {report['reason']}")
    else:
        automata, merges = report["automata"], report["merges"]
        cuts = f"{automata['certified_cuts']} of {automata['symbol_pairs']} symbol pairs"
        lines += [
            f"  engine         {report['engines']['encode']}",
            f"  automata       {automata['symbols']} symbols, {automata['left_states']} left and "
            f"{automata['right_states']} right states, monoids of {automata['left_monoid']} and "
            f"{automata['right_monoid']} elements, {automata['table_bytes'] / 1024:.0f} KiB",
            f"  certified cuts {cuts}",
            f"  merges         {merges['effective']} effective, {merges['out_of_order']} done one at a time; "
            f"{merges['tokens_never_a_whole_piece']} of {merges['tokens']} tokens are never a whole piece",
        ]
    lines += part_lines(report["parts"])
    return "\n".join(lines)
