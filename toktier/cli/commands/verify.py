"""`toktier verify`: the engines against the reference, on the user's own text."""

from __future__ import annotations

import json
from typing import Any

import click

from toktier.cli import options


@click.command(
    short_help="Compare the engines with the reference on your own text.",
    epilog="Exit status: 0 all equal and every planted fault found, 1 a difference, a fault not found or bad data, "
    "3 the reference runs this tokenizer (nothing to compare), 2 wrong usage, 130 interrupted (--resume goes on).",
)
@click.argument("source", metavar="SOURCE")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False), metavar="FILE...")
@options.rank_file_options
@click.option(
    "--engine",
    "engines",
    type=click.Choice(["host", "device"]),
    multiple=True,
    default=("host",),
    show_default=True,
    help="What is compared; may be given twice.",
)
@click.option("--processes", type=click.IntRange(0), default=0, help="Workers.  [default: one a core]")
@click.option("--plant", "plants", type=click.IntRange(0), default=0, metavar="N", help="Plant N faults; find each.")
@click.option("--special-tokens", type=click.Choice(["parse", "text"]), default="parse", show_default=True)
@click.option("--errors", type=click.Choice(["strict", "replace"]), default="strict", show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of cuts, seams and faults.")
@click.option("--journal", metavar="FILE", help="Keep what is done in FILE.")
@click.option("--resume", is_flag=True, help="Go on from --journal.")
@click.option("--report", "target", metavar="FILE", help="Write the report as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(
    source: str,
    files: tuple[str, ...],
    pattern: str | None,
    special_tokens_file: str | None,
    target: str | None,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Compare SOURCE's engines with its reference on the text of FILEs: pieces, ids and ends of tokens.

    Files are cut into documents, at paragraphs and now and then anywhere; as many seams, where the end of one document
    meets the beginning of another, are compared too.  A difference is shown with its place, and made short.

    \b
    Examples:
      toktier verify o200k_base corpus/*.txt
      toktier verify ./model/tokenizer.json corpus.txt --plant 50 --report report.json
      toktier verify o200k_base big.txt --journal big.journal      (Ctrl-C, then again with --resume)
    """
    from toktier.cli.output import sink
    from toktier.cli.stages import StageBar
    from toktier.verify import Settings, run

    if chosen["resume"] and not chosen["journal"]:
        raise click.UsageError("--resume needs --journal FILE, the journal to go on from")
    chosen["engines"] = tuple(dict.fromkeys(chosen["engines"]))
    with StageBar(" batches") as bar:
        report = run(options.load(source, pattern, special_tokens_file), files, Settings(**chosen), bar)
    shown = json.dumps(report, indent=2, ensure_ascii=False)
    if target:
        with sink(target) as stream:
            stream.write(shown.encode() + b"\n")
    click.echo(shown if as_json else readable(report))
    return int(report["status"])


def readable(report: dict[str, Any]) -> str:
    """The report for a person."""
    name = f"{report['tokenizer']['name']} against {report['tokenizer']['reference']}"
    if report["status"] == 3:
        return f"{name}: nothing to compare, the reference runs this tokenizer: {report['reason']}"
    seen = report["compared"]
    lines = [
        f"{name}: {report['documents']} documents and {report['seams']} seams, {seen['bytes']} bytes, "
        f"{seen['pieces']} pieces, {seen['tokens']} tokens in {report['seconds']} s",
        f"  ends of tokens {report['ends']}",
    ]
    if seen["on_reference"]:
        lines.append(f"  {seen['on_reference']} texts hold a byte that is no token, and run on the reference")
    for d in report["differences"]:
        places = ", ".join(f"{p['file']} byte {p['offset']}" for p in d["document"])
        lines += [
            f"  DIFFERS  {d['engine']}, {d['level']}: document at {places}, byte {d['offset']} of it",
            f"           reference {d['want']}, {d['engine']} {d['got']}",
            f"           around it {d['context']!r}; in short {d['minimised']!r}",
        ]
    lines.append(f"  {len(report['differences'])} differences")
    for p in report["plants"]:
        if not p["found"]:
            lines.append(f"  NOT FOUND  {p['kind']}: {p['what']} (seen: {p['seen']})")
    if report["plants"]:
        found = len(report["plants"]) - report["plants_not_found"]
        lines.append(f"  {found} of {len(report['plants'])} planted faults found")
    return "\n".join(lines)
