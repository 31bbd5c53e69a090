"""From a request to its answer: the lane or the session does the work, and the answer says how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, InputTypeError
from ..session import Patch, Session
from ..session.patch import minimal
from ..tokenizer import Tokenizer, _checked
from .answer import Answer
from .errors import UnknownSessionError, UnknownTokenizerError
from .lane import Lane
from .sessions import Sessions
from .sweeper import Sweeper
from .work import Work, late

if TYPE_CHECKING:
    from .counts import Counts
    from .pace import Pace
    from .verifier import Verifier

FOUND_WRONG = "quarantined: the verifier found ids that are not the reference's"
Options = tuple[Any, bool | None]  # special_tokens, add_special_tokens; None each for what the session has
Change = Callable[[Session], Patch]
Check = Callable[[Session], object]


class Desk:
    """The lanes of a tier by name, and how each kind of request is answered.

    Args:
      tokenizers: by name.  default: the name that None means.
      make: the lane of a tokenizer.
      ttl, path: of the sessions.  max_session_bytes: of all of them in memory.  pace: of who forgets them.
      counts: where answers are counted.  verifier: who is offered them.
    """

    def __init__(
        self,
        tokenizers: Mapping[str, Tokenizer],
        default: str,
        make: Callable[[Tokenizer], Lane],
        ttl: float | None,
        path: Path | None,
        max_session_bytes: int | None,
        pace: Pace,
        counts: Counts,
        verifier: Verifier | None,
    ) -> None:
        self._default, self._max_bytes = default, max_session_bytes
        self._counts, self._verifier = counts, verifier
        shared: dict[str, tuple[Lane, Sessions]] = {}  # by digest: equal tokenizers share everything
        self._by_name: dict[str, tuple[Lane, Sessions]] = {}
        for name, tok in tokenizers.items():
            if tok.fingerprint not in shared:
                lane = make(tok)
                shared[tok.fingerprint] = lane, Sessions(lane, ttl, path)
            self._by_name[name] = shared[tok.fingerprint]
        self.lanes = [lane for lane, _ in shared.values()]
        self.sessions = [sessions for _, sessions in shared.values()]
        self._sweeper = Sweeper(self.sessions, ttl, pace)

    def find(self, tokenizer: str | None) -> tuple[str, Lane, Sessions]:
        """A name with what stands behind it; in or out of quarantine, as the verifier has it.

        Raises:
          UnknownTokenizerError: there is none of this name.
        """
        name = self._default if tokenizer is None else tokenizer
        try:
            lane, sessions = self._by_name[name]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, self._by_name))
            raise UnknownTokenizerError(f"tokenizer={name!r} is not in this tier: use one of {known}") from None
        if self._verifier is not None:
            found = self._verifier.quarantined
            if found or lane.quarantined:
                wrong = not found.isdisjoint(self.names(lane))
                if wrong and not lane.quarantined:
                    lane.quarantined = FOUND_WRONG
                elif not wrong and lane.quarantined is FOUND_WRONG:
                    lane.quarantined = ""
        return name, lane, sessions

    def names(self, lane: Lane) -> list[str]:
        """The names of a lane."""
        return [name for name, (other, _) in self._by_name.items() if other is lane]

    def encode(self, text: str, tokenizer: str | None, options: Options, work: Work) -> Answer:
        """The answer to a text without a session."""
        name, lane, _ = self.find(tokenizer)
        _checked(text)
        work.left()
        framed = bool(options[1])
        mode = lane.tokenizer._mode(options[0])
        ids, size = lane.encode(text, mode, framed, work)
        ids.flags.writeable = False
        self._counts.answered(work.path, size, work.scanned)
        if self._verifier is not None:
            self._verifier.offer(name, text, ids, mode, framed)
        return Answer(
            ids, work.path, work.reason, size, work.scanned, None, name, None, work.batch, work.queued, work.seconds()
        )

    def change(
        self,
        session: str,
        tokenizer: str | None,
        change: Change,
        text: str | None,
        options: Options,
        check: Check | None,
        work: Work,
    ) -> Answer:
        """The answer to a change of a session.

        Args:
          change: is given the session if it is known.
          text: of the session that is made otherwise, None to make none.
          check: may refuse the change of a session as it is; is given an empty one before it is made.
        """
        name, _, sessions = self.find(tokenizer)
        check_session(session)
        self._sweeper.start()
        verified = self._verifier is not None

        def changed(found: Session, known: bool, before: np.ndarray | None) -> tuple[Any, ...]:
            work.left()
            if check is not None:
                check(found if known else _empty(found))
            patch = change(found) if known else None
            ids = found.ids
            if patch is None:
                patch = Patch(0, 0, ids)
            elif before is not None:
                patch = minimal(0, before, ids)
            windows, chunks = found._engine, found._chunks
            return patch, ids, known, chunks.n_bytes, windows.mode, windows.framed, chunks.chunks[:] if verified else ()

        try:
            result = sessions.change(session, changed, text, *options, timeout=work.left())
        except TimeoutError:
            raise late() from None
        if result is None:
            raise missing(session)
        patch, ids, known, size, mode, framed, chunks = result
        path, reason = _told(known, work)
        self._counts.answered(path, size, work.scanned)
        if self._max_bytes is not None:
            self._evict()
        if self._verifier is not None:
            self._verifier.offer(name, lambda: [c.text for c in chunks], ids, mode, framed, session)
        return Answer(
            ids, path, reason, size, work.scanned, patch, name, session, work.batch, work.queued, work.seconds()
        )

    def session_state(self, session: str, tokenizer: str | None, timeout: float | None) -> tuple[int, np.ndarray]:
        """Characters of a session, and its ids: int32[n]."""
        _, _, sessions = self.find(tokenizer)
        check_session(session)
        try:
            found = sessions.look(session, lambda known: (known.n_chars, known.ids), timeout)
        except TimeoutError:
            raise late() from None
        if found is None:
            raise missing(session)
        return found

    def delete(self, session: str, tokenizer: str | None, timeout: float | None) -> bool:
        """Forget a session."""
        _, _, sessions = self.find(tokenizer)
        check_session(session)
        try:
            return sessions.delete(session, timeout)
        except TimeoutError:
            raise late() from None

    def close(self) -> None:
        """Drop all sessions from memory; what is on disk stays there."""
        self._sweeper.close()
        for sessions in self.sessions:
            sessions.close()

    def session_stats(self) -> dict[str, int]:
        """Sums over all stores."""
        totals: dict[str, int] = {}
        for sessions in self.sessions:
            for store in sessions.stores:
                for name, count in store.stats().items():
                    totals[name] = totals.get(name, 0) + count
        return totals

    def _evict(self) -> None:
        """Keep to the memory limit over all stores, the session used longest ago first."""
        stores = [store for sessions in self.sessions for store in sessions.stores]
        assert self._max_bytes is not None
        while sum(store.nbytes for store in stores) > self._max_bytes:
            used = [(oldest, k) for k, store in enumerate(stores) if (oldest := store.oldest()) is not None]
            if not any(stores[k].evict() for _, k in sorted(used)):
                return  # all of them are in use


def _told(known: bool, work: Work) -> tuple[str, str]:
    """Path and reason of a session's answer."""
    path, reason = work.path or "session", work.reason
    if not known:
        return (path, f"no session of this name: {reason}") if work.path else ("host", "a new session without text")
    if path == "session":
        return path, "the session is known, and nothing was to be tokenized"
    if path == "device":
        return path, f"the session is known, but its change is long: from its cut on {reason}"
    if path == "host":
        spilled = f" ({reason})" if reason.startswith("spilled") else ""
        return "session", f"the session is known: repaired from its cut on{spilled}"
    return path, reason


def _empty(like: Session) -> Session:
    return Session(like.tokenizer, _windows=like._engine, special_tokens=like.special_tokens)


def missing(session: str) -> UnknownSessionError:
    """The error of a name that is not known."""
    return UnknownSessionError(
        f"session={session!r} is not known (never made, deleted, evicted or expired): make it with "
        "encode(text, session=...) or create=True"
    )


def check_session(session: object) -> str:
    """A session's name."""
    if not isinstance(session, str):
        raise InputTypeError(f"session must be a str, not {type(session).__name__}: a name for the session")
    if not session:
        raise InputError("session is empty: give the session a name")
    return session
