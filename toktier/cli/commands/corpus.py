"""`toktier corpus`: documents in, token shards out."""

from __future__ import annotations

import json
from typing import Any

import click

from toktier.cli import options


@click.command(
    short_help="Tokenize a corpus into shards; goes on after a kill.",
    epilog="Exit status: 0 done, 1 bad data or no way to go on (the message says what to do), 2 wrong usage, "
    "130 interrupted (the same command goes on).",
)
@click.argument("inputs", nargs=-1, required=True, metavar="IN...")
@click.option("-o", "--out", required=True, metavar="DIR", help="Folder for shards and manifest.")
@options.tokenizer_options
@options.choice(
    "--format",
    ["auto", "text", "jsonl", "parquet"],
    "Of the inputs; auto goes by their names (.jsonl, .ndjson, .parquet, else text; .gz .zst .bz2 .xz are read).",
)
@click.option("--lines", is_flag=True, help="Each line of a text file is a document.  [default: each file is]")
@click.option("--separator", metavar="STR", help=r"What divides the documents of a text file (\n, \t, \0, \\).")
@click.option("--field", default="text", show_default=True, metavar="NAME", help="The text in a JSON object.")
@click.option("--column", default="text", show_default=True, metavar="NAME", help="The text in a Parquet row.")
@click.option("--id-field", metavar="NAME", help="Field or column whose value is kept as the document's id.")
@options.choice(
    "--errors",
    ["strict", "skip", "replace"],
    "A document that cannot be read: stop there, leave it out and list it, or put U+FFFD where bytes are wrong.",
)
@click.option(
    "--special-tokens",
    type=click.Choice(["parse", "text", "forbid"]),
    default=None,
    help="Literals such as <|endoftext|> in the text.  [default: what the reference does]",
)
@click.option("--add-special-tokens", is_flag=True, help="Add what the post-processor adds, such as BOS.")
@click.option("--bos", metavar="TOKEN", help="Put this token (its text or id) in front of every document.")
@click.option("--eos", metavar="TOKEN", help="Put this token behind every document.")
@options.choice(
    "--write",
    ["both", "parquet", "flat"],
    "Parquet shards, one flat array with offsets, or both.",
)
@options.choice(
    "--dtype",
    ["auto", "uint16", "uint32", "int32"],
    "Of the flat array; auto is uint16 where all ids fit, else int32.",
)
@click.option("--shard-bytes", default="32M", show_default=True, metavar="SIZE", help="Input that makes one shard.")
@options.choice(
    "--engine",
    ["auto", "host", "device", "reference", "ray"],
    "What encodes; ray: the processes of a Ray cluster.  The output is the same.",
)
@click.option("--processes", type=click.IntRange(0), default=0, help="Workers.  [default: one a core]")
@click.option("--ray-address", metavar="ADDRESS", help="The Ray cluster.  [default: the one here, or a new one]")
@click.option("--restart", is_flag=True, help="Begin anew, whatever is in DIR of an earlier run.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest, without its shards, as JSON.")
def command(
    inputs: tuple[str, ...],
    out: str,
    source: str,
    pattern: str | None,
    special_tokens_file: str | None,
    separator: str | None,
    shard_bytes: str,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Tokenize files, folders and globs into DIR; the same command goes on where one that was killed stopped.

    DIR gets shard-00000.parquet ... (source, position, tokens: list<int32>), tokens.bin and offsets.bin (for
    numpy.memmap; toktier.corpus.open reads them), and manifest.json with digests of all that went in and came out.

    \b
    Examples:
      toktier corpus data/*.jsonl.gz --out tokens --eos '<|endoftext|>'
      toktier corpus books/ --out tokens --errors skip
      toktier corpus wiki.txt --separator '\\n\\n\\n' -t ./model --out tokens --write flat
      toktier corpus s.parquet --column body --id-field url --out tokens --engine ray
    """
    from toktier.cli.stages import StageBar
    from toktier.corpus import Settings, run

    settings = Settings(
        separator=None if separator is None else unescaped(separator), shard_bytes=size_of(shard_bytes), **chosen
    )
    with StageBar("B") as bar:
        manifest = run(options.load(source, pattern, special_tokens_file), inputs, out, settings, bar)
    if as_json:
        click.echo(json.dumps({k: v for k, v in manifest.items() if k != "shards"}, indent=2, ensure_ascii=False))
    else:
        click.echo(readable(manifest, out))


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size_of(text: str) -> int:
    """Bytes of a size such as 64M."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].upper() in ("K", "M", "G") else (text, "")
    if not (number.isascii() and number.isdigit() and int(number) > 0):
        raise click.UsageError(f"--shard-bytes {text!r} is no size; give bytes, or such as 64M or 1G")
    return int(number) * _UNITS[unit]


def unescaped(text: str) -> str:
    """The string with its escapes replaced."""
    parts, known = text.split("\\\\"), {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0"}
    for written, meant in known.items():
        parts = [part.replace(written, meant) for part in parts]
    return "\\".join(parts)


def readable(manifest: dict[str, Any], out: str) -> str:
    """What was done, for a person."""
    ran = manifest["run"]
    lines = [
        f"{out}: {manifest['documents']} documents, {manifest['tokens']} tokens in {len(manifest['shards'])} shards",
        f"  digest  {manifest['digest']}",
    ]
    if "flat" in manifest:
        lines.append(f"  flat    {manifest['flat']['tokens']['file']}, {manifest['flat']['dtype']}")
    if "reference_because" in ran:
        lines.append(f"  encoded by the reference: {ran['reference_because']}")
    if ran["shards_found"]:
        lines.append(f"  {ran['shards_found']} shards were there already")
    if manifest["skipped"] or manifest["replaced"]:
        lines.append(f"  {manifest['skipped']} documents left out, {manifest['replaced']} with U+FFFD put in:")
        for p in manifest["problems"][:5]:
            where = f":{p['line']}" if "line" in p else ""
            lines.append(f"    {p['source']}{where} ({p['position']}): {p['problem']}")
        if len(manifest["problems"]) > 5:
            file = manifest.get("all_problems", {"file": "manifest.json"})["file"]
            lines.append(f"    ... all are in {out}/{file}")
    return "\n".join(lines)
