"""`toktier count`: how many tokens a text has."""

from __future__ import annotations

import json
from typing import Any

import click

from toktier.cli import options, text
from toktier.cli.encoding import EncodeSettings, encoded


@click.command(
    short_help="Print how many tokens files have.",
    epilog="Exit status: 0 done, 1 bad data, 2 wrong usage, 130 interrupted, 141 reader gone.",
)
@options.files_argument
@options.encoding_options
@click.option("--json", "as_json", is_flag=True, help='One JSON object a file, {"file", "count"}, and no sum.')
def command(files: tuple[str, ...], as_json: bool, **settings: Any) -> None:
    """Print the number of tokens of each FILE, or of standard input, and their sum.

    \b
    Examples:
      toktier count README.md
      git diff | toktier count -t cl100k_base
      toktier count --json src/*.py
    """
    chosen, total = EncodeSettings(**settings), 0
    paths = list(files) or ["-"]
    with text.progress(paths) as bar:
        for path in paths:
            count = sum(len(ids) for ids in encoded(path, chosen, bar))
            total += count
            if as_json:
                bar.write(json.dumps({"file": path, "count": count}))
            else:
                bar.write(f"{count:>10}  {click.format_filename(path)}" if files else str(count))
        if len(paths) > 1 and not as_json:
            bar.write(f"{total:>10}  total")
