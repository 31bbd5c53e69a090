"""The tier: tokenizers, sessions, the device and the verifier behind one object."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import routing
from ..errors import InputTypeError
from ..tokenizer import Tokenizer, _checked
from . import arguments, switching
from .answer import Answer
from .counts import Counts
from .desk import Change, Check, Desk, Options, check_session
from .errors import UnknownTokenizerError
from .gate import Gate
from .lane import Lane
from .launcher import Launcher
from .pace import Pace
from .thresholds import Limits, Thresholds
from .work import Work, current, late
from .workers import Workers

if TYPE_CHECKING:
    from .verifier import Verifier

_LONG = 1 << 15  # characters of a text to tokenize from which on a job of the pool is a long one
Call = Callable[[Work], Answer]


class Tier:
    """Exact ids from several tokenizers and many sessions, each request by the cheapest way there is.

    A change of a session is repaired on the CPU; a long text, or a long change from its cut on, goes to the device,
    together with others that wait; a short one to the host engine; what no engine can do to the reference.  Every
    `Answer` says which it was and why (docs/tier.md).

    Safe from any thread.  A call runs in the thread that makes it, but for launches of the device; the `_async` calls
    run in a small pool and never block the event loop.

    Args:
      tokenizers: Tokenizers by name, or anything `toktier.load` takes; or one of either, under its own name.
      default: the name that `tokenizer=None` means; the first one unless given.
      thresholds: sizes by which the router decides; None for what was measured on this machine (`warmup`).
      workers: threads behind the asynchronous calls.
      max_queue: requests in the tier at a time; more are refused with QueueFullError.
      max_wait: seconds that a text waits for others to share its launch, while there are others in the tier.
      max_batch_bytes: of a launch.  max_waiting_bytes: waiting for launches; what exceeds it goes to the host.
      device_pause: seconds until a device that failed is tried again, doubled each time.
      switch_interval: seconds after which a thread of this process gives way to another one (`sys.setswitchinterval`,
        until `close`), so that a short request need not wait for a long one; None to leave that alone.
      ttl: seconds after its last use when a session is forgotten; None for never.
      max_session_bytes: memory of all sessions; above it those used longest ago are dropped from memory.
      path: a SQLite file, or a folder for one, in which every change is kept before its answer is given.
      verifier: a Verifier that is offered every answer; started and closed by the tier.

    Raises:
      InputError, InputTypeError: an argument that makes no sense.  UnknownTokenizerError: `default`.

    >>> with Tier({"o200k": "o200k_base"}) as tier:
    ...     tier.encode("the build pipe", session="chat").ids.tolist()
    ...     answer = tier.append("chat", "line")
    ...     answer.path, answer.patch.start, answer.ids.tolist()
    [3086, 3024, 22906]
    ('session', 2, [3086, 3024, 29412])
    """

    def __init__(
        self,
        tokenizers: Any,
        *,
        default: str | None = None,
        thresholds: Thresholds | None = None,
        workers: int = 2,
        max_queue: int = 1024,
        max_wait: float = 0.002,
        max_batch_bytes: int = 1 << 22,
        max_waiting_bytes: int = 1 << 25,
        device_pause: float = 1.0,
        switch_interval: float | None = 0.001,
        ttl: float | None = 3600.0,
        max_session_bytes: int | None = None,
        path: str | Path | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        arguments.check_numbers(
            workers=(workers, 1),
            max_queue=(max_queue, 1),
            max_wait=(max_wait, 0),
            max_batch_bytes=(max_batch_bytes, 1),
            max_waiting_bytes=(max_waiting_bytes, 0),
            device_pause=(device_pause, 0),
            switch_interval=(1 if switch_interval is None else switch_interval, 1e-6),
            max_session_bytes=(1 if max_session_bytes is None else max_session_bytes, 1),
        )
        if thresholds is not None and not isinstance(thresholds, Thresholds):
            raise InputTypeError(f"thresholds must be Thresholds or None, not {type(thresholds).__name__}")
        self._tokenizers = arguments.loaded(tokenizers)
        if default is not None and default not in self._tokenizers:
            raise UnknownTokenizerError(f"default={default!r} is not among tokenizers: {', '.join(self._tokenizers)}")
        self._default = next(iter(self._tokenizers)) if default is None else default
        self._counts = Counts()
        self._limits = Limits(thresholds)
        self._gate = Gate(max_queue, self._counts)
        self._launcher = Launcher(
            self._counts, lambda: self._gate.inside, max_wait, max_batch_bytes, max_waiting_bytes, device_pause
        )
        self._workers = Workers(workers)
        pace = Pace(lambda: self._gate.inside, lambda: self._launcher.waiting + self._workers.waiting)
        self._verifier = verifier
        self._desk = Desk(
            self._tokenizers,
            self._default,
            lambda tok: Lane(tok, self._limits, self._launcher, pace),
            ttl,
            None if path is None else arguments.file(path),
            max_session_bytes,
            pace,
            self._counts,
            verifier,
        )
        if verifier is not None:
            verifier.start(self._tokenizers)
        self._shortened = switch_interval is not None
        if switch_interval is not None:
            switching.shorten(switch_interval)

    # -- requests --------------------------------------------------------------------------------------------------

    def encode(
        self,
        text: str,
        session: str | None = None,
        tokenizer: str | None = None,
        *,
        special_tokens: Any = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """The ids of a text; with a session, its text becomes this one, by a repair where the session is known.

        Args:
          text: any str.
          session: a name; a session is made where it is not known.
          tokenizer: its name in this tier.
          special_tokens, add_special_tokens: as for `Tokenizer.encode`; for a session that is known None means what it
            was made with, and anything else must be that.
          timeout: seconds for the work to be done.

        Raises:
          as `Tokenizer.encode`; DeadlineError, QueueFullError, TierClosedError, UnknownTokenizerError.
        """
        options = special_tokens, add_special_tokens
        return self._served(self._encoding(text, session, tokenizer, options), timeout)

    def append(
        self,
        session: str,
        text: str,
        tokenizer: str | None = None,
        *,
        create: bool = False,
        special_tokens: Any = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """Adds text at the end of a session.

        Args:
          create: make a session of this text where the name is not known.
          check: called with the session while nobody else may use it, before it is changed (with an empty one before
            it is made); what it raises ends the request, and nothing is changed.
          the others: as for `encode`.

        Raises:
          UnknownSessionError: the name is not known, and `create` is False.  as `encode`.
        """
        options = special_tokens, add_special_tokens
        return self._served(self._appending(session, text, tokenizer, create, options, check), timeout)

    def edit(
        self,
        session: str,
        start: int,
        stop: int,
        text: str,
        tokenizer: str | None = None,
        *,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """Replaces the characters [start, stop) of a session by `text`.

        Raises:
          InputError: not 0 <= start <= stop <= its characters.  as `append`.
        """
        return self._served(self._editing(session, start, stop, text, tokenizer, check), timeout)

    def update(
        self,
        session: str,
        text: str,
        tokenizer: str | None = None,
        *,
        create: bool = False,
        special_tokens: Any = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """Makes `text` the text of a session; what changed is found here.  Arguments and errors as `append`."""
        options = special_tokens, add_special_tokens
        return self._served(self._updating(session, text, tokenizer, create, options, check), timeout)

    async def encode_async(
        self,
        text: str,
        session: str | None = None,
        tokenizer: str | None = None,
        *,
        special_tokens: Any = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """As `encode`; cancelled, it does nothing if it was not begun, and else is finished unseen."""
        options = special_tokens, add_special_tokens
        call = self._encoding(text, session, tokenizer, options)
        return await self._awaited(call, timeout, tokenizer, session, text)

    async def append_async(
        self,
        session: str,
        text: str,
        tokenizer: str | None = None,
        *,
        create: bool = False,
        special_tokens: Any = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """As `append`, and `encode_async`; changes of one session are made in the order of the calls."""
        options = special_tokens, add_special_tokens
        call = self._appending(session, text, tokenizer, create, options, check)
        return await self._awaited(call, timeout, tokenizer, session, text, added=True)

    async def edit_async(
        self,
        session: str,
        start: int,
        stop: int,
        text: str,
        tokenizer: str | None = None,
        *,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """As `edit`, and `append_async`."""
        call = self._editing(session, start, stop, text, tokenizer, check)
        return await self._awaited(call, timeout, tokenizer, session, text, added=True)

    async def update_async(
        self,
        session: str,
        text: str,
        tokenizer: str | None = None,
        *,
        create: bool = False,
        special_tokens: Any = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """As `update`, and `append_async`."""
        options = special_tokens, add_special_tokens
        call = self._updating(session, text, tokenizer, create, options, check)
        return await self._awaited(call, timeout, tokenizer, session, text)

    def delete(self, session: str, tokenizer: str | None = None, *, timeout: float | None = None) -> bool:
        """Forgets a session, in memory and on disk; says whether there was one.

        Raises:
          DeadlineError: others used it for `timeout` seconds.
        """
        with self._gate:
            return self._desk.delete(session, tokenizer, arguments.seconds(timeout))

    def session_ids(self, session: str, tokenizer: str | None = None, *, timeout: float | None = None) -> np.ndarray:
        """int32[n], read-only: the ids of a session; they stay as they are when it changes.

        Raises:
          UnknownSessionError: there is none of this name.  DeadlineError: as `delete`.
        """
        return self.session_state(session, tokenizer, timeout=timeout)[1]

    def session_state(
        self, session: str, tokenizer: str | None = None, *, timeout: float | None = None
    ) -> tuple[int, np.ndarray]:
        """Characters of a session's text, and its ids as `session_ids` gives them, of the same moment."""
        with self._gate:
            return self._desk.session_state(session, tokenizer, arguments.seconds(timeout))

    # -- the tier itself -------------------------------------------------------------------------------------------

    @property
    def tokenizers(self) -> Mapping[str, Tokenizer]:
        """The tokenizers by name."""
        return dict(self._tokenizers)

    @property
    def default(self) -> str:
        """The name that `tokenizer=None` means."""
        return self._default

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds in force."""
        return self._limits.now

    def warmup(self, sizes: list[int] | None = None, *, measure: bool | None = True) -> None:
        """Compiles or loads all that later requests need, then sets the thresholds, unless they were given.

        Until then, unless the device program is in use already, every text goes to the host.

        Args:
          sizes: as for `Tokenizer.warmup`; with None, and no thresholds given, a machine without an accelerator makes
            the host engines ready and nothing else, since no text goes elsewhere.
          measure: True for the thresholds that are stored on this machine, measured now if there are none; None to
            measure them again; False for those stored, or the package's own.
        """
        if not sizes and measure and not self._limits.resolved and routing.backend() == "cpu":
            for lane in self._desk.lanes:
                lane.core.warmup()
            self._limits.never()
            return
        for lane in self._desk.lanes:
            lane.warmup(sizes)
        for lane in self._desk.lanes:
            if not lane.reason and lane.core.device_started:
                self._limits.resolve(lane.core, measure)
                break

    def quarantine(self, tokenizer: str, reason: str) -> None:
        """Serve a tokenizer, and all that equal it, from the reference alone until `release`."""
        self._desk.find(tokenizer)[1].quarantined = f"quarantined: {reason}"

    def release(self, tokenizer: str) -> None:
        """End a quarantine."""
        lane = self._desk.find(tokenizer)[1]
        if self._verifier is not None:
            for name in self._desk.names(lane):
                self._verifier.release(name)
        lane.quarantined = ""

    def stats(self) -> dict[str, Any]:
        """Counts since the start and what the tier holds now, JSON-ready.

        paths: requests, served_bytes and scanned_bytes of each path.  batches: launches, requests in them, largest.
        spills: texts that went to the host, by why (paused, memory, failure, refused, backpressure).  errors: by type.
        cancelled, late, rejected: requests.  queue: inside, waiting (not begun), launching (waiting for the device).
        sessions: sums over the stores.  thresholds; device_paused (seconds); quarantined; verifier.
        """
        limits = self._limits.now
        return {
            **self._counts.snapshot(),
            "queue": {
                "inside": self._gate.inside,
                "waiting": self._workers.waiting,
                "launching": self._launcher.waiting,
            },
            "sessions": self._desk.session_stats(),
            "thresholds": {"device": limits.device, "join": limits.join, "source": limits.source},
            "device_paused": self._launcher.paused(),
            "quarantined": {
                n: lane.quarantined for lane in self._desk.lanes if lane.quarantined for n in self._desk.names(lane)
            },
            "verifier": None if self._verifier is None else self._verifier.stats(),
        }

    def close(self, timeout: float | None = None) -> None:
        """Takes no more requests, finishes those it has, and closes everything; a second call does nothing.

        Args:
          timeout: seconds after which what was not begun is failed with TierClosedError; None to finish all of it.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self._gate.shut():
            return
        self._workers.close(timeout)
        in_time = self._gate.wait(None if end is None else end - time.monotonic())
        self._launcher.close(finish=in_time)
        self._gate.wait()
        self._workers.join()
        self._desk.close()
        if self._verifier is not None:
            self._verifier.close()
        if self._shortened:
            switching.restore()

    def __enter__(self) -> Tier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Tier:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _encoding(self, text: str, session: str | None, tokenizer: str | None, options: Options) -> Call:
        if session is not None:
            return self._updating(session, text, tokenizer, True, options, None)
        return lambda work: self._desk.encode(text, tokenizer, options, work)

    def _appending(
        self, session: str, text: str, tokenizer: str | None, create: bool, options: Options, check: Check | None
    ) -> Call:
        made = _checked(text) if create else None
        return lambda work: self._desk.change(session, tokenizer, lambda s: s.append(text), made, options, check, work)

    def _updating(
        self, session: str, text: str, tokenizer: str | None, create: bool, options: Options, check: Check | None
    ) -> Call:
        made = _checked(text) if create else None
        return lambda work: self._desk.change(session, tokenizer, lambda s: s.update(text), made, options, check, work)

    def _editing(
        self, session: str, start: int, stop: int, text: str, tokenizer: str | None, check: Check | None
    ) -> Call:
        edit: Change = lambda s: s.edit(start, stop, text)  # noqa: E731
        return lambda work: self._desk.change(session, tokenizer, edit, None, (None, None), check, work)

    def _served(self, call: Call, timeout: float | None) -> Answer:
        """In the thread of the caller."""
        work = Work(arguments.seconds(timeout))
        with self._gate:
            return self._answer(call, work)

    def _answer(self, call: Call, work: Work) -> Answer:
        current.work = work
        try:
            return call(work)
        except Exception as e:
            self._counts.add("errors", type(e).__name__)
            raise
        finally:
            current.work = None

    async def _awaited(
        self,
        call: Call,
        timeout: float | None,
        tokenizer: str | None,
        session: str | None,
        text: str,
        added: bool = False,
    ) -> Answer:
        """In a thread of the pool; what belongs to one session keeps its order.

        `text`: what is `added` to the session, or all of it.
        """
        _, lane, sessions = self._desk.find(tokenizer)
        key = None if session is None else (id(lane), check_session(session))
        long = len(_checked(text)) >= _LONG and (added or session is None or not sessions.holds(session))
        work = Work(arguments.seconds(timeout), self._workers, long)

        def job() -> Answer:
            work.queued = work.seconds()
            return self._answer(call, work)

        self._gate.enter()
        try:
            future: Future[Answer] = self._workers.submit(job, key, self._gate.leave, long)
        except BaseException:
            self._gate.leave()
            raise
        outer = asyncio.wrap_future(future)
        try:
            if timeout is not None:
                await asyncio.wait([outer], timeout=timeout)
                if not outer.done() and future.cancel():
                    self._counts.add("errors", "DeadlineError")
                    raise late()
            return await outer
        except asyncio.CancelledError:
            future.cancel()
            outer.cancel()
            work.cancel()
            self._counts.add("events", "cancelled")
            raise
