"""Sessions made by chance whose quantiles are those that the TokTier paper measured on real agents.

Each quantity is drawn from a table of quantiles, log-linear between them, so that the quantiles hold as they stand.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from toktier.errors import InputError

from .traces import Call

Table = tuple[tuple[float, float], ...]
"""(probability, value) from 0 to 1, both rising, values above 0."""


@dataclass(frozen=True)
class Profile:
    """What sessions are drawn from.

    Attributes:
      append: characters that a call adds.
      loop: calls a turn of the user.
      turns: turns a session.
      gap: seconds between two turns of the user.
      step: seconds between two calls within a turn (the answer of the model and the work of a tool).
      first: characters of the first context: system prompt, tools, files of the project, question.
      windows: (share of sessions, tokens of the model's window): where 92 % of it are reached a summary takes the
        context's place.
      summary: characters that are left then, the system prompt included.
      edit: share of turns that begin with the end of the old context taken back.
      characters: a token; contexts are drawn in characters and limited in tokens.
      written: share of an append that the model wrote, drawn evenly up to twice that.
    """

    append: Table
    loop: Table
    turns: Table
    gap: Table
    step: Table
    first: Table
    windows: tuple[tuple[float, int], ...]
    summary: Table
    edit: float = 0.03
    characters: float = 4.0
    written: float = 0.3


PAPER = Profile(
    append=((0.0, 24.0), (0.1, 130.0), (0.5, 1_400.0), (0.9, 11_000.0), (0.99, 38_000.0), (1.0, 213_000.0)),
    loop=((0.0, 1.0), (0.25, 1.3), (0.5, 3.7), (0.75, 10.0), (0.9, 28.5), (0.99, 93.0), (0.996, 112.0), (1.0, 250.0)),
    turns=((0.0, 1.0), (0.5, 5.6), (0.9, 26.0), (1.0, 70.0)),
    gap=((0.0, 4.0), (0.25, 100.0), (0.5, 340.0), (0.87, 3_600.0), (0.97, 86_400.0), (1.0, 400_000.0)),
    step=((0.0, 1.0), (0.5, 9.0), (0.9, 45.0), (0.99, 200.0), (1.0, 900.0)),
    first=((0.0, 30_000.0), (0.5, 90_000.0), (0.9, 180_000.0), (1.0, 700_000.0)),
    windows=((0.6, 200_000), (0.25, 272_000), (0.15, 1_000_000)),
    summary=((0.0, 45_000.0), (0.5, 90_000.0), (1.0, 190_000.0)),
)
"""Interactive use of Claude Code and Codex CLI as the paper has it (its sections on traces and on state that is kept).

Appends of 1.4 K characters in the median, P90 9 to 14 K, P99 38 K; contexts of 86 to 123 K tokens in the median;
loops of 3 to 5 calls, P90 27 to 34, P99 87 to 103; gaps between turns of 3.6 to 6.4 minutes in the median; full
contexts 1.0 to 3.6 % of calls; with a time to live of an hour 97 to 98 % of calls find their session.
"""


def draw(table: Table, rng: random.Random) -> float:
    """A value of the table's distribution."""
    return value_at(table, rng.random())


def value_at(table: Table, p: float) -> float:
    """The p-quantile of a table: log-linear between its entries.

    >>> value_at(((0.0, 1.0), (1.0, 100.0)), 0.5)
    10.0
    """
    i = min(max(bisect.bisect_right(table, (p, math.inf)), 1), len(table) - 1)
    (a, low), (b, high) = table[i - 1], table[i]
    return low * (high / low) ** ((p - a) / (b - a))


def generate(sessions: int, seed: int = 0, profile: Profile = PAPER) -> Iterator[Call]:
    """Sessions of calls with counts and no text, the same for the same arguments.

    >>> first = next(generate(1, seed=1))
    >>> first.session, first.call, first.event, first.append_chars == first.context_chars
    ('g1-0', 0, 'start', True)
    """
    if sessions < 0:
        raise InputError(f"sessions={sessions} must be 0 or more")
    for number in range(sessions):
        yield from session_calls(f"g{seed}-{number}", random.Random(f"{seed} {number}"), profile)


def session_calls(name: str, rng: random.Random, profile: Profile = PAPER) -> Iterator[Call]:
    """The calls of one session."""
    limit = 0.92 * profile.characters * _choice(profile.windows, rng)
    context, number = 0, 0
    for turn in range(max(1, round(draw(profile.turns, rng)))):
        for step in range(max(1, round(draw(profile.loop, rng)))):
            pause = None if not number else draw(profile.gap if not step else profile.step, rng)
            event, keep = "continue", context
            appended = max(1, round(draw(profile.append, rng)))
            if not number:
                event, keep, appended = "start", 0, round(draw(profile.first, rng))
            elif context + appended > limit:
                event, keep, appended = "compact", 0, round(draw(profile.summary, rng))
            elif not step and rng.random() < profile.edit:
                event, keep = "edit", max(0, context - round(draw(profile.append, rng)))
            context = keep + appended
            made = int(appended * min(1.0, 2 * profile.written * rng.random())) if event == "continue" else 0
            yield Call(
                name,
                number,
                appended,
                context,
                gen_chars=made,
                keep_chars=keep,
                pause=pause,
                turn=turn,
                event=event,
                context_tokens=round(context / profile.characters),
                source="generated",
            )
            number += 1


def _choice(options: Sequence[tuple[float, int]], rng: random.Random) -> int:
    return rng.choices([value for _, value in options], weights=[share for share, _ in options])[0]
