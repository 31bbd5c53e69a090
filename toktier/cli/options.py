"""The options that several subcommands share, and the tokenizer they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

F = TypeVar("F", bound=Callable[..., Any])


def choice(name: str, values: Sequence[str], text: str) -> Callable[[F], F]:
    """An option that takes one of some words, the first by default."""
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


_TOKENIZER = click.option(
    "-t",
    "--tokenizer",
    "source",
    default="o200k_base",
    show_default=True,
    metavar="SOURCE",
    help="An embedded name (o200k_base, cl100k_base), a tokenizer.json or its folder, a rank file, or a hub id.",
)
_PATTERN = click.option(
    "--pattern", metavar="REGEX", help="For a rank file of your own: the regex that cuts text into pieces."
)
_SPECIAL_TOKENS_FILE = click.option(
    "--special-tokens-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help='For a rank file of your own: its special tokens and their ids as a JSON object, {"<|endoftext|>": 100257}.',
)

_ENCODING = [
    choice("--engine", ["auto", "device", "host", "reference"], "What does the work; the ids are the same from each."),
    click.option(
        "--special-tokens",
        type=click.Choice(["parse", "text", "forbid"]),
        default=None,
        help="Literals such as <|endoftext|> in the text become their id, stay plain text, or are an error."
        "  [default: what the reference does: parse for a tokenizer.json, forbid for a rank file]",
    ),
    click.option("--add-special-tokens", is_flag=True, help="Add what the post-processor adds, such as BOS."),
    choice(
        "--errors",
        ["strict", "replace"],
        "Bytes that are not UTF-8: stop and name their offset, or put U+FFFD in their place.",
    ),
]


def encoding_options(command: F) -> F:
    """--tokenizer, --pattern, --special-tokens-file, --engine, --special-tokens, --add-special-tokens and --errors."""
    for option in reversed(_ENCODING):
        command = option(command)
    return tokenizer_options(command)


def tokenizer_options(command: F) -> F:
    """--tokenizer, --pattern and --special-tokens-file."""
    return _TOKENIZER(rank_file_options(command))


def rank_file_options(command: F) -> F:
    """--pattern and --special-tokens-file."""
    return _PATTERN(_SPECIAL_TOKENS_FILE(command))


files_argument = click.argument("files", nargs=-1, type=click.Path(allow_dash=True), metavar="[FILE]...")


def load(source: str, pattern: str | None, special_tokens_file: str | None) -> Tokenizer:
    """The tokenizer that --tokenizer, --pattern and --special-tokens-file name."""
    import toktier
    from toktier.cli import specials

    special_tokens = specials.read(special_tokens_file) if special_tokens_file else None
    return toktier.load(source, pattern=pattern, special_tokens=special_tokens)
