"""`toktier decode`: ids to text."""

from __future__ import annotations

import click

from toktier.cli import ids, options, output, text
from toktier.errors import InputError


@click.command(
    short_help="Print the text of token ids.",
    epilog="Exit status: 0 done, 1 bad data, 2 wrong usage, 130 interrupted, 141 reader gone.",
)
@options.files_argument
@options.tokenizer_options
@click.option("--skip-special-tokens", is_flag=True, help="Leave special tokens out of the text.")
@click.option("--bytes", "raw", is_flag=True, help="The tokens' bytes as they are, also where they are not UTF-8.")
@click.option("-o", "--output", "target", default="-", metavar="FILE", help="Where the text goes.  [default: stdout]")
def command(
    files: tuple[str, ...],
    source: str,
    pattern: str | None,
    special_tokens_file: str | None,
    skip_special_tokens: bool,
    raw: bool,
    target: str,
) -> None:
    """Print the text of token ids read from FILEs, or from standard input.

    What `toktier encode` writes is read as it is: numbers parted by blanks or commas, JSON (a list, or an object with
    "ids", one or several), or a .npy file.

    \b
    Examples:
      toktier encode README.md | toktier decode | cmp - README.md
      echo 24912 2375 | toktier decode
      toktier decode -t cl100k_base ids.npy -o text.txt
    """
    tokenizer = options.load(source, pattern, special_tokens_file)
    with output.sink(target) as stream:
        for path in files or ("-",):
            with text.opened(path) as handle:
                data = handle.read()
            for sequence in ids.parse(data, text.label(path)):
                try:
                    if raw:
                        part = tokenizer.decode_bytes(sequence.ids, skip_special_tokens=skip_special_tokens)
                    else:
                        part = tokenizer.decode(sequence.ids, skip_special_tokens=skip_special_tokens).encode("utf-8")
                except InputError as e:
                    raise ids.refused(sequence, e) from e
                stream.write(part)
