"""`toktier certify`: what is proven of a tokenizer, shown again."""

from __future__ import annotations

import json

import click

from toktier.cli import options


@click.command(
    short_help="Prove a tokenizer's tables against its reference, again.",
    epilog="Exit status: 0 exact on toktier's engines, 3 runs on the reference (the report says why), "
    "1 a proof failed or the source cannot be loaded, 2 wrong usage.",
)
@click.argument("source", metavar="SOURCE")
@options.rank_file_options
@click.option("--quick", is_flag=True, help="Fewer extra states, a sample of the code points: seconds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with everything.")
def command(source: str, pattern: str | None, special_tokens_file: str | None, quick: bool, as_json: bool) -> int:
    """Show what is known of SOURCE and prove its pre-tokenizer's tables against the reference that is installed.

    The proof: the automata by the W-method, every code point against the one that stands for it, every certified cut in
    all contexts of some length.  docs/certify.md says what each line means.

    \b
    Examples:
      toktier certify o200k_base --quick
      toktier certify ./model/tokenizer.json
      toktier certify --json ./model | jq .verdict
    """
    from toktier.certify import certify, readable
    from toktier.cli.stages import StageBar

    tokenizer = options.load(source, pattern, special_tokens_file)
    with StageBar(" texts") as bar:
        certificate = certify(tokenizer, quick, bar)
    report = certificate.report
    click.echo(json.dumps(report, indent=2, ensure_ascii=False) if as_json else readable(report))
    return certificate.status
