"""A progress bar for work in stages, each with a total of its own; on a terminal only."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


class StageBar:
    """Call it with a stage's name, the steps done since the last call, and their total (0: not known)."""

    def __init__(self, unit: str) -> None:
        self._unit, self._stage = unit, ""
        self._bar: Any = None

    def __enter__(self) -> StageBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that `done` more steps of a stage are done."""
        if stage != self._stage:
            self.__exit__()
            self._stage = stage
            # disable=None: a bar only on a terminal
            self._bar = tqdm(
                desc=stage,
                total=total or None,
                unit=self._unit,
                unit_scale=True,
                leave=False,
                disable=None,
                file=sys.stderr,
            )
        self._bar.update(done)
