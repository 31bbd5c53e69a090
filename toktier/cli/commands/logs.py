"""`toktier logs`: what a session tier would save, by the logs that Claude Code and Codex CLI keep themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from toktier.workload import Logs, Savings


@click.command(
    short_help="Say what a session tier would save you, by your agents' logs.",
    epilog="Exit status: 0 done, 1 no log there or bad data, 2 wrong usage, 130 interrupted, 141 reader gone.",
)
@click.argument("paths", nargs=-1, type=click.Path(), metavar="[PATH]...")
@click.option("--export", "target", metavar="FILE", help="Write the calls as a trace: counts and keyed hashes only.")
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Key of the hashes (16 bytes or more), to name the same session the same in two exports.  [default: a random "
    "key that is not kept]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(paths: tuple[str, ...], target: str | None, key_file: str | None, as_json: bool) -> None:
    """Read the logs of Claude Code and Codex CLI in PATHs (files, or folders that are searched) and print what a
    session tier would save: characters tokenized now against those that a tier would scan, appends, contexts, calls a
    turn, pauses, and how long sessions would have to be kept.

    Without PATH, the folders where the two keep their logs.  Nothing leaves the machine; what is printed and exported
    is counts, no text, no path, no name.

    \b
    Examples:
      toktier logs
      toktier logs ~/.claude/projects --export counts.jsonl
      toktier logs counts.jsonl --json
    """
    from tqdm import tqdm

    from toktier.errors import SourceNotFoundError
    from toktier.workload import read_logs, savings, write_traces
    from toktier.workload.logs import DEFAULTS

    chosen = list(paths) or [str(p) for p in map(Path, DEFAULTS) if p.expanduser().exists()]
    if not chosen:
        raise SourceNotFoundError(f"none of {', '.join(DEFAULTS)} exists; name a file or folder of logs")
    key = Path(key_file).read_bytes() if key_file else None
    with tqdm(unit=" files", disable=None, leave=False) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        logs = read_logs(chosen, key=key, progress=progress)
    found = savings(logs.calls)
    if target:
        write_traces(target, logs.calls)
    if as_json:
        click.echo(json.dumps(as_dict(logs, found), indent=2))
    else:
        click.echo(readable(logs, found))


def as_dict(logs: Logs, found: Savings) -> dict[str, Any]:
    """What `--json` prints."""
    read = {name: dict(getattr(logs, name)) for name in ("files", "counts", "skipped", "repeated", "notes")}
    return {**found.as_dict(), "read": read, "copied_calls": logs.copied_calls}


def readable(logs: Logs, found: Savings) -> str:
    """The report for a person."""
    files = ", ".join(
        f"{count} file{'' if count == 1 else 's'} {_SOURCES[kind]}" for kind, count in sorted(logs.files.items())
    )
    lines = [
        f"{files}; {logs.counts['lines']:,} lines",
        f"{found.calls:,} calls of a model in {found.sessions:,} sessions and {found.turns:,} turns; "
        f"{100 * _share(sum(found.events.get(e, 0) for e in ('start', 'compact')), found.calls):.1f} % of them bring a "
        "whole context",
    ]
    if logs.copied_calls:
        share = _share(logs.copied_calls, logs.copied_calls + found.calls)
        lines.append(
            f"{logs.copied_calls:,} more are copies from another session's log ({100 * share:.1f} %): not counted"
        )
    lines += ["", f"  {'':<36}{'median':>12}{'P90':>12}{'P99':>12}{'largest':>12}"]
    for title, values, scale in (
        ("characters appended by a call", found.append, 1),
        ("characters of its context", found.context, 1),
        ("tokens of it, where counted", found.context_tokens, 1),
        ("calls a turn", found.loop, 1),
        ("minutes between calls", found.pause, 60),
        ("minutes before a turn of the user", found.turn_pause, 60),
    ):
        lines.append(f"  {title:<36}" + "".join(f"{_number(v / scale):>12}" for v in values.values()))
    if not math.isnan(found.cached_share):
        lines.append(f"  the provider read {100 * found.cached_share:.1f} % of the tokens from its cache")
    lines += [
        "",
        f"  {'sessions kept for':<36}{'found again':>12}{'characters scanned':>22}{'fewer':>12}",
        f"  {'not at all (stateless)':<36}{'-':>12}{found.stateless_chars:>22,}{'1.0x':>12}",
    ]
    for ttl, chars in found.scanned_chars.items():
        rate = f"{100 * found.hit_rate[ttl]:.1f} %"
        lines.append(f"  {_duration(ttl):<36}{rate:>12}{chars:>22,}{f'{found.factor(ttl):.1f}x':>12}")
    if found.unknown_pauses:
        lines.append(f"  {found.unknown_pauses:,} calls came after a pause that is not known; taken as found again")
    for title, counter in (("not counted", logs.skipped), ("said twice", logs.repeated), ("noted", logs.notes)):
        if counter:
            lines += ["", f"  {title}"]
            lines += [f"    {count:>10,}  {what}" for what, count in counter.most_common()]
    return "\n".join(lines)


_SOURCES = {
    "claude": "of Claude Code",
    "codex": "of Codex CLI",
    "trace": "of traces",
    "other": "of another kind, not read",
    "unreadable": "that cannot be read",
}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"


def _duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "ever"
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = seconds / size
            return f"{count:g} {unit}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"
