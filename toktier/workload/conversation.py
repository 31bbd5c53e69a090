"""One context as a log tells it: characters that come and go, and the calls of the model that saw it."""

from __future__ import annotations

from collections import Counter

from .traces import Call


class Conversation:
    """Follows one context; text is only ever handed over as a length.

    Attributes:
      total: characters of the context now, those that no call has seen yet included.
      activity: prompts and calls so far; a prompt that hangs on an earlier state than the newest took something back.
      calls: the calls of the model.
    """

    def __init__(self, session: str, source: str, notes: Counter[str]) -> None:
        self.session, self.source, self.notes = session, source, notes
        self.total = self.activity = 0
        self.calls: list[Call] = []
        self.prompts: list[int] = []  # `total` before each of the user's prompts
        self._kept = 0  # of the context of the last call, what still stands
        self._generated = 0
        self._reset = self._edited = False
        self._turn = -1
        self._new_turn = True
        self._heard: float | None = None  # when the newest input since the last call came
        self._arrived: float | None = None

    def add(self, chars: int, when: float | None = None, prompt: bool = False) -> None:
        """Input for the model: a prompt of the user, the result of a tool, what the agent puts in itself."""
        if prompt:
            self.prompts.append(self.total)
            self.activity += 1
            self._new_turn = True
        self.total += chars
        if when is not None:
            self._heard = when

    def output(self, chars: int) -> None:
        """What the model wrote; it is part of the context of the next call."""
        self.total += chars
        self._generated += chars

    def call(self, when: float | None) -> Call:
        """The model is asked with the context as it stands; `when` is what the log says of its answer."""
        self._turn += self._new_turn
        arrived = self._heard if self._heard is not None else when
        pause = None
        if arrived is not None and self._arrived is not None:
            pause = arrived - self._arrived
            if pause < 0:
                self.notes["clock went back"] += 1
                pause = 0.0
        event = "continue"
        if not self.calls:
            event = "start"
        elif self._reset:
            event = "compact"
        elif self._edited:
            event = "edit"
        if event != "continue":
            self._generated = 0
        if event in ("start", "compact"):
            self._kept = 0
        call = Call(
            self.session,
            len(self.calls),
            self.total - self._kept,
            self.total,
            gen_chars=min(self._generated, self.total - self._kept),
            keep_chars=self._kept,
            pause=pause if self.calls else None,
            turn=self._turn,
            event=event,
            source=self.source,
        )
        self.calls.append(call)
        self.activity += 1
        self._kept, self._generated = self.total, 0
        self._reset = self._edited = self._new_turn = False
        self._arrived, self._heard = (arrived if arrived is not None else self._arrived), None
        return call

    def rewind(self, total: int) -> None:
        """The end of the context is taken back, to its first `total` characters."""
        if total >= self.total:
            return
        self.notes["context taken back"] += 1
        self.total = max(total, 0)
        self._edited |= self.total < self._kept
        self._kept = min(self._kept, self.total)
        self._generated = 0
        while self.prompts and self.prompts[-1] >= self.total:
            self.prompts.pop()

    def reset(self, chars: int) -> None:
        """A summary of `chars` characters takes the place of the whole context."""
        self.notes["context compacted"] += 1
        self.total, self._kept, self._generated = chars, 0, 0
        self._reset = bool(self.calls)
        self.prompts.clear()
