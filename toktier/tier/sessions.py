"""The sessions of a lane by name, each with the options it was made with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..errors import InputError
from ..session import Session, SessionStore
from .lane import Lane, LaneWindows

R = TypeVar("R")


class Options(NamedTuple):
    """How a session encodes: the mode of special tokens (as the tokenizer resolves it), add_special_tokens."""

    mode: Any
    framed: bool


class _Moved(Exception):
    """The session belongs in another store than was chosen: the lane went into quarantine, or out of it, or somebody
    else made the session meanwhile.
    """


class Sessions:
    """One store for each way of encoding that is in use.

    A session keeps the options that it was made with.  While the lane is quarantined sessions live in stores of their
    own, whose every change is encoded by the reference; each is moved there, and back, when it is next asked for.

    Args:
      lane: whose sessions.
      ttl: seconds after the last use; None for ever.  path: a SQLite file, None for memory alone.
    """

    def __init__(self, lane: Lane, ttl: float | None, path: Path | None) -> None:
        self._lane, self._ttl, self._path = lane, ttl, path
        self._lock = threading.Lock()  # to make stores
        self._made = threading.Condition(threading.Lock())
        self._making: set[str] = set()  # sessions that are being made, each by one request, in whichever store
        self._moving = threading.Lock()  # held while a session is moved between stores
        self._stores: dict[tuple[Options, bool], SessionStore] = {}  # by options, and whether in quarantine
        self._before: dict[str, np.ndarray] = {}  # ids that clients know of sessions moved since
        self._plain = Options(lane.tokenizer._mode(None), False)
        self._store(self._plain, False)

    @property
    def stores(self) -> list[SessionStore]:
        """All stores."""
        return list(self._stores.values())

    def change(
        self,
        id: str,
        work: Callable[[Session, bool, np.ndarray | None], R],
        text: str | None,
        special_tokens: Any = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> R | None:
        """What `work(session, known, before)` returns, called while nobody else uses the session.

        Args:
          work: `before` are the ids as its clients know them, where the session was moved since its last change.
          text: of a session that is not known; None: such a one is not made, and None is returned.
          special_tokens, add_special_tokens: None for what the session has, or for the tokenizer's own.

        Raises:
          InputError: the session was made with other options.
          as `SessionStore.use`.
        """
        while True:
            store, quarantined = self._chosen(id, special_tokens, add_special_tokens)
            makes = False

            def checked(
                session: Session, known: bool, store: SessionStore = store, quarantined: bool = quarantined
            ) -> R:
                nonlocal makes
                if bool(self._lane.quarantined) != quarantined:
                    raise _Moved
                if not known:
                    makes = self._reserved(id, timeout)
                    if any(id in other for other in self.stores if other is not store):
                        raise _Moved
                result = work(session, known, self._before.get(id))
                self._before.pop(id, None)
                return result

            try:
                found = store.use(id, checked, text, timeout)
            except _Moved:
                continue
            finally:
                if makes:
                    self._release(id)
            if found is not None or bool(self._lane.quarantined) == quarantined:
                return found

    def look(self, id: str, work: Callable[[Session], R], timeout: float | None) -> R | None:
        """What `work(session)` returns, which changes nothing; None where the session is not known."""
        while True:
            store, quarantined = self._chosen(id, None, None)
            found = store.use(id, lambda session, known: work(session), timeout=timeout)
            if found is not None or bool(self._lane.quarantined) == quarantined:
                return found

    def holds(self, id: str) -> bool:
        """Is a session of this name in memory?  Waits for nothing."""
        return any(id in store._entries for store in self.stores)

    def delete(self, id: str, timeout: float | None) -> bool:
        """Forget a session; says whether there was one."""
        self._key(id, None, None, False)  # opens the store in which it lies on disk
        with self._moving:
            self._before.pop(id, None)
            return any([store.delete(id, timeout) for store in self.stores])

    def forget_moves(self) -> None:
        """Let go of what is remembered for clients of sessions that are no more."""
        gone = [id for id in list(self._before) if not self._is_there(id)]
        with self._moving:  # not held for long: requests move sessions
            for id in gone:
                if not self._is_there(id):
                    self._before.pop(id, None)

    def close(self) -> None:
        """Drop everything from memory; what is on disk stays there."""
        for store in self.stores:
            store.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _chosen(self, id: str, special_tokens: Any, add_special_tokens: bool | None) -> tuple[SessionStore, bool]:
        """The store in which a session belongs now, moved there if need be; whether it is one of the quarantine."""
        quarantined = bool(self._lane.quarantined)
        key = self._key(id, special_tokens, add_special_tokens, quarantined)
        store = self._store(*key)
        if len(self._stores) > 1:
            self._move(id, key)
        return store, quarantined

    def _is_there(self, id: str) -> bool:
        return any(id in store for store in self.stores)

    def _reserved(self, id: str, timeout: float | None) -> bool:
        """True once nobody else makes a session of this name, which two with other options would in two stores."""
        with self._made:
            if not self._made.wait_for(lambda: id not in self._making, timeout):
                raise TimeoutError
            self._making.add(id)
            return True

    def _release(self, id: str) -> None:
        with self._made:
            self._making.discard(id)
            self._made.notify_all()

    def _key(
        self, id: str, special_tokens: Any, add_special_tokens: bool | None, quarantined: bool
    ) -> tuple[Options, bool]:
        """The options of a session, and its store's place."""
        asked = special_tokens is not None or add_special_tokens is not None
        if not asked and len(self._stores) == 1 and (self._path is None or id in self._stores[(self._plain, False)]):
            return self._plain, quarantined
        has = self._options_of(id)
        mode = self._lane.tokenizer._mode(special_tokens)
        if has is None:
            return Options(mode, bool(add_special_tokens)), quarantined
        if special_tokens is not None and mode != has.mode:
            raise InputError(
                f"special_tokens={special_tokens!r}: session {id!r} was made with {has.mode!r}, which it keeps; "
                "leave it out, or delete the session"
            )
        if add_special_tokens is not None and bool(add_special_tokens) != has.framed:
            raise InputError(
                f"add_special_tokens={add_special_tokens!r}: session {id!r} was made with {has.framed}, which it "
                "keeps; leave it out, or delete the session"
            )
        return has, quarantined

    def _options_of(self, id: str) -> Options | None:
        """The options of a session that is known in memory or on disk."""
        for (options, _), store in list(self._stores.items()):
            if id in store:
                return options
        plain = self._stores[(self._plain, False)]
        if plain._disk is not None and isinstance(id, str):
            for made in plain._disk.options_of(id):
                special = made["special_tokens"]
                mode = self._lane.tokenizer._mode(frozenset(special) if isinstance(special, list) else special)
                options = Options(mode, made["add"])
                in_quarantine = bool(made.get("unplaced")) and not plain._windows.reason
                if id in self._store(options, in_quarantine):  # not expired
                    return options
        return None

    def _store(self, options: Options, quarantined: bool) -> SessionStore:
        store = self._stores.get((options, quarantined))
        if store is not None:
            return store
        with self._lock:
            if (options, quarantined) not in self._stores:
                plain = options.mode == self._lane.tokenizer._mode(None)
                special = None if plain else options.mode
                windows = LaneWindows(self._lane, special, options.framed, quarantined)
                made = SessionStore(
                    self._lane.tokenizer,
                    ttl=self._ttl,
                    path=self._path,
                    special_tokens=special,
                    add_special_tokens=options.framed,
                    _windows=windows,
                )
                self._stores = {**self._stores, (options, quarantined): made}
            return self._stores[(options, quarantined)]

    def _move(self, id: str, key: tuple[Options, bool]) -> None:
        """Bring a session from the other side of the quarantine, its text encoded afresh."""
        options, quarantined = key
        other = self._stores.get((options, not quarantined))
        if other is None or id not in other:
            return
        with self._moving:
            session = other.get(id)
            if session is None:
                return
            store = self._store(options, quarantined)
            self._before.setdefault(id, session.ids)
            fresh = Session(self._lane.tokenizer, session.text, _windows=store._windows, **store._options)
            store.put(id, fresh)
            other.delete(id)  # now: where it cannot be put there, it stays here
