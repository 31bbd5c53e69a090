"""`toktier encode`: text to ids."""

from __future__ import annotations

from typing import Any

import click

from toktier.cli import options, output, text
from toktier.cli.encoding import EncodeSettings, encoded


@click.command(
    short_help="Print the token ids of files.",
    epilog="Exit status: 0 done, 1 bad data, 2 wrong usage, 130 interrupted, 141 reader gone.",
)
@options.files_argument
@options.encoding_options
@click.option(
    "-f",
    "--format",
    "kind",
    type=click.Choice(output.FORMATS),
    help="[default: by the suffix of --output: .npy, .json or .jsonl, .txt; else text]",
)
@click.option("-o", "--output", "target", default="-", metavar="FILE", help="Where the ids go.  [default: stdout]")
def command(files: tuple[str, ...], kind: str | None, target: str, **settings: Any) -> None:
    """Print the token ids of FILEs, or of standard input.

    text: the ids of one file on one line.  json: one object a file, {"file", "ids", "count"}.  npy: one int32 array.

    \b
    Examples:
      toktier encode README.md
      echo "It's 12345" | toktier encode -t cl100k_base
      toktier encode big.txt -o ids.npy
      toktier encode -f json a.txt b.txt | jq .count
      toktier encode -t ./model/tokenizer.json --special-tokens text prompt.txt
    """
    kind = output.format_of(kind, target)
    paths = list(files) or ["-"]
    if kind == "npy" and len(paths) > 1:
        raise click.UsageError("--format npy takes one FILE: use --format json for several")
    output.refuse_binary_terminal(kind, target)
    chosen = EncodeSettings(**settings)
    with text.progress(paths) as bar, output.sink(target, kind) as stream:
        writer = output.IdWriter(stream, kind)
        for path in paths:
            writer.begin(path)
            for ids in encoded(path, chosen, bar):
                writer.ids(ids)
            writer.end()
