"""Text for sessions that have only counts: sources and documentation that every Python installation has."""

from __future__ import annotations

import functools
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from .traces import Call

_MOST = 6 << 20  # characters of sources that are read


@functools.cache
def sources() -> str:
    """Python's standard library, up to some 6 M characters."""
    parts, total = [], 0
    for file in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "test", "lib2to3", "idlelib", "encodings"} & set(file.parts):
            parts.append(file.read_bytes().decode("utf-8", "ignore"))
            total += len(parts[-1])
            if total > _MOST:
                break
    return "\n".join(parts)


@functools.cache
def documents() -> str:
    """The Python language reference, as `pydoc` carries it."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[k] for k in sorted(topics.topics))


class Material:
    """Text of any length, put together as agents' contexts are: source files, prose, results of tools as JSON.

    Args:
      seed: the same texts are handed out in the same order for the same seed.

    >>> len(Material(1).text(1000)), Material(1).text(50) == Material(1).text(50)
    (1000, True)
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(f"material {seed}")
        self._shared = sources(), documents()

    def text(self, chars: int) -> str:
        """Exactly `chars` characters."""
        parts, total = [], 0
        while total < chars:
            parts.append(self._part(chars - total))
            total += len(parts[-1])
        return "".join(parts)[:chars]

    def append(self, chars: int, gen_chars: int = 0) -> str:
        """An append of a call: what the model wrote, a mark, what came back from a tool or the user; `chars` in all."""
        middle, end = "<|im_end|>\n<|im_start|>tool\n", "<|im_end|>\n<|im_start|>assistant\n"
        rest = chars - gen_chars - len(middle) - len(end)
        if rest < 0:
            return self.text(chars)
        return self.text(gen_chars) + middle + self.text(rest) + end

    def fill(self, calls: Iterator[Call]) -> Iterator[Call]:
        """The calls with text where they have none."""
        for call in calls:
            if call.append is None:
                call.append = self.append(call.append_chars, call.gen_chars)
            yield call

    def _part(self, most: int) -> str:
        rng = self._rng
        code, prose = self._shared
        size = min(most + 200, rng.randint(400, 6_000))
        kind = rng.random()
        source = code if kind < 0.75 else prose
        at = rng.randrange(max(1, len(source) - size))
        at = source.rfind("\n", 0, at) + 1
        part = source[at : at + size]
        if kind < 0.2:  # a file as a tool shows it: lines with numbers
            first = rng.randint(1, 900)
            lines = part.splitlines(keepends=True)
            return "".join(f"{first + k:6}\t{line}" for k, line in enumerate(lines))
        if kind < 0.3:  # what a tool answers as JSON
            return json.dumps(
                {"exit_code": rng.choice([0, 0, 0, 1]), "seconds": round(rng.random(), 3), "output": part}
            )
        return part
