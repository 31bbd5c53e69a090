"""`toktier count`: how many tokens a text has."""

from __future__ import annotations

import json
from typing import Any

import click

from toktier.cli import options, text, wording
from toktier.cli.encoding import EncodeSettings, encoded
from toktier.errors import ToktierError


@click.command(
    short_help="Print how many tokens files have.",
    epilog="Exit status: 0 done, 1 bad data, 2 wrong usage, 130 interrupted, 141 reader gone.",
)
@options.files_argument
@options.encoding_options
@click.option("--json", "as_json", is_flag=True, help='One JSON object a file, {"file", "count"}, and no sum.')
def command(files: tuple[str, ...], as_json: bool, **settings: Any) -> int:
    """Print the number of tokens of each FILE, or of standard input, and their sum.

    A FILE that cannot be counted is named on stderr and left out of the sum; the status is then 1.

    \b
    Examples:
      toktier count README.md
      git diff | toktier count -t cl100k_base
      toktier count --json src/*.py
    """
    chosen, total, bad = EncodeSettings(**settings), 0, 0
    chosen.check()
    paths = list(files) or ["-"]
    with text.progress(paths) as bar:
        for path in paths:
            try:
                count = sum(len(ids) for ids in encoded(path, chosen, bar))
            except (ToktierError, OSError) as e:
                bad += 1
                with bar.external_write_mode():
                    wording.say(wording.worded(e, click.get_current_context().command))
                continue
            total += count
            if as_json:
                bar.write(json.dumps({"file": path, "count": count}))
            else:
                bar.write(f"{count:>10}  {click.format_filename(path)}" if files else str(count))
        if len(paths) > 1 and not as_json:
            bar.write(f"{total:>10}  total")
    if bad and len(paths) > 1:
        wording.say(
            f"{bad} of {len(paths)} files could not be counted" + ("" if as_json else "; the total leaves them out")
        )
    return 1 if bad else 0
