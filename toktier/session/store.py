"""Many sessions by name: found again, kept within a time and a size, and on disk where a path is given."""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InputError, InputTypeError, RecordError, SessionError
from .checks import check_text
from .patch import Patch
from .session import MODES, Session
from .window import TokenizerWindows, windows

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

R = TypeVar("R")
_TRIED = 64  # sessions used longest ago that `evict` looks at
_STEP = 4  # sessions that a call drops while a sweep is due: more than it can have made
_SWEEPS = 4  # in the time of `ttl`
EVENTS = ("hits", "misses", "loads", "refused", "evictions", "expirations", "widened", "full_encodes", "changes")


class _Entry:
    """A name's place in memory.  Its lock is held while its session is made, found or dropped."""

    __slots__ = ("dead", "lock", "nbytes", "session", "used")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.session: Session | None = None
        self.nbytes = 0
        self.used = 0.0
        self.dead = False


class SessionStore:
    """Sessions of one tokenizer by name.

    `get_or_create(id, text)` is the call of a serving front end: the session of that name is brought to `text` by a
    repair, or made by encoding it.  Safe from any thread: each session has a lock of its own; the one lock they share
    is held to count and never while anything is tokenized, read or written.

    With `path` every change is in a SQLite file (write-ahead log) before the call returns: it survives the death of the
    process, and several processes may use the file; the later of two who change the same session is told.  `max_bytes`
    bounds the memory, not the file.

    Args:
      tokenizer: of all sessions.
      ttl: seconds after its last use when a session is forgotten; None for never.
      max_bytes: of memory; above it the sessions used longest ago are dropped.  None for no limit.
      path: a SQLite file for the sessions, made where it does not exist.
      special_tokens, add_special_tokens, engine, repair, keep_text: as for `Session`.

    Raises:
      SessionError: path is no file of sessions, and none can be made there.  InputTypeError, InputError: an argument.

    >>> import toktier
    >>> store = toktier.SessionStore(toktier.load("o200k_base"), ttl=3600, max_bytes=1 << 30)
    >>> store.get_or_create("chat 1", "the build pipe").ids.tolist()
    [3086, 3024, 22906]
    >>> store.get_or_create("chat 1", "the build pipeline").last_patch.start
    2
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        ttl: float | None = None,
        max_bytes: int | None = None,
        path: str | Path | None = None,
        special_tokens: Any = None,
        add_special_tokens: bool = False,
        repair: str = "certified",
        engine: str = "auto",
        keep_text: bool = True,
        _windows: TokenizerWindows | None = None,
    ) -> None:
        for name, limit in (("ttl", ttl), ("max_bytes", max_bytes)):
            if limit is not None and not (isinstance(limit, int | float) and limit > 0):
                raise InputError(f"{name}={limit!r} must be a number above 0, or None for no limit")
        if repair not in MODES:
            raise InputError(f"repair={repair!r} is not known: use one of {', '.join(MODES)}")
        self.tokenizer, self.ttl, self.max_bytes = tokenizer, ttl, max_bytes
        if path is not None and not keep_text:
            raise InputError("keep_text=False goes without path=: sessions on disk are written with their text")
        self._options = {
            "keep_text": keep_text,
            "special_tokens": special_tokens,
            "add_special_tokens": add_special_tokens,
            "repair": repair,
        }
        self._windows = _windows or windows(tokenizer, special_tokens, engine, add_special_tokens)
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._tally = threading.Lock()
        self._counts = dict.fromkeys(EVENTS, 0)
        self._total = 0
        self._closed = False
        self._swept()
        self._disk: Any = None
        if path is not None:
            from .disk import Disk, checked_path

            self._disk = Disk(checked_path(path), self._windows, tokenizer, self._options, ttl)

    # -- sessions --------------------------------------------------------------------------------------------------

    def get_or_create(self, id: str, text: str) -> Session:
        """The session of this name, its text made `text`: a repair where it is known, a full encode where not.

        `session.last_patch` says how its ids changed; on a miss they are all new.  A stored record that cannot be
        trusted counts as not known.

        Raises:
          as `Session.update`; after an error the session is as it was.
        """

        def updated(session: Session, known: bool) -> Session:
            if known:
                session.update(text)
            return session

        check_text("text", text)
        found = self.use(id, updated, text)
        assert found is not None
        return found

    def use(
        self, id: str, work: Callable[[Session, bool], R], text: str | None = None, timeout: float | None = None
    ) -> R | None:
        """What `work(session, known)` returns, called while nobody else finds, changes or drops the session.

        Args:
          id: its name.
          work: may change a session that was known.  It is called again where another process changed it meanwhile.
          text: where the name is not known, a session of this text is made and kept if `work` returns; with None
            nothing is made and None is returned.
          timeout: seconds to wait while others use the session; None for ever.

        Raises:
          TimeoutError: they used it for longer.  RecordError: as `get`, if `text` is None.
          as `Session`'s methods, and whatever `work` raises.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            entry = self._entry(id)
            if not entry.lock.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
                raise _in_use(id, timeout)
            try:
                if entry.dead:
                    continue
                session, known = None, False
                try:
                    session = self._found(id, entry, refuse=text is None)
                    known = session is not None
                    if session is None and text is not None:
                        session = Session(self.tokenizer, text, _windows=self._windows, **self._options)
                    result = None if session is None else work(session, known)
                    if session is not None and not known and self._disk is not None:
                        self._disk.create(id, session)
                except BaseException as e:
                    if not known:
                        self._drop(id, entry, None)
                    elif isinstance(e, SessionError) and session is not None and session.closed:
                        # closed by its holder, or changed by another process: look again
                        self._drop(id, entry, "refused")
                        continue
                    raise
                if session is None:
                    self._drop(id, entry, None)
                    self._count("misses")
                    return None
                if known:
                    self._count("hits")
                else:
                    self._count("misses", "full_encodes")
                    self._hold(id, entry, session)
                self._use(id, entry)
            finally:
                entry.lock.release()
            self._tidy()
            return result

    def get(self, id: str) -> Session | None:
        """The session of this name, or None.

        Raises:
          RecordError: its record on disk cannot be trusted; `delete` it or use `get_or_create`.
        """

        def opened(session: Session, known: bool) -> Session:
            session._open()  # what its holder closed is looked for again, on disk
            return session

        return self.use(id, opened)

    def put(self, id: str, session: Session) -> None:
        """Keep a session, such as a fork, under this name; what had the name is forgotten.

        Raises:
          InputError: a session of another tokenizer, or one that a store keeps already.
        """
        if not isinstance(session, Session):
            raise InputTypeError(
                f"session must be a Session, not {type(session).__name__}: use get_or_create for a text"
            )
        mine, other = self._windows, session._engine
        if (other.digest, other.mode, other.framed) != (mine.digest, mine.mode, mine.framed):
            raise InputError(
                "session belongs to another tokenizer or other options than this store: make it with the same"
            )
        if session._on_change is not None:
            raise InputError("session is kept by a store under some name already: put a fork() of it")
        self.delete(id)
        while True:
            entry = self._entry(id)
            with entry.lock:
                if entry.dead:
                    continue
                try:
                    if self._disk is not None:
                        self._disk.create(id, session)
                except BaseException:
                    self._drop(id, entry, None)
                    raise
                self._hold(id, entry, session)
                self._use(id, entry)
            self._tidy()
            return

    def delete(self, id: str, timeout: float | None = None) -> bool:
        """Forget a session, in memory and on disk; says whether there was one.

        Args:
          timeout: seconds to wait while others use the session; None for ever.

        Raises:
          TimeoutError: they used it for longer.
        """
        self._check(id)
        entry = self._entries.get(id)
        known = False
        if entry is not None:
            if not entry.lock.acquire(timeout=-1 if timeout is None else timeout):
                raise _in_use(id, timeout)
            try:
                known = entry.session is not None and not entry.dead
                self._drop(id, entry, None)
            finally:
                entry.lock.release()
        if self._disk is not None:
            known = self._disk.delete(id) or known
        return known

    def sweep(self) -> int:
        """Forget all sessions whose time is over; returns how many were in memory.

        The other calls do a little of it each while it is due, so it need not be called.
        """
        if self.ttl is None:
            return 0
        gone = self._forget(None)
        if self._disk is not None:
            self._disk.expire()
        self._swept()
        return gone

    def oldest(self) -> float | None:
        """When the session used longest ago was used, by `time.monotonic()`; None where there is none in memory."""
        with self._tally:
            first = next(iter(self._entries.values()), None)
        return None if first is None else first.used

    def evict(self) -> bool:
        """Drop the session used longest ago from memory, of those that nobody uses just now; says whether one was."""
        with self._tally:
            first = list(itertools.islice(self._entries.items(), _TRIED))
        return any(self._dropped(id, entry, "evictions") for id, entry in first)

    def close(self) -> None:
        """Drop everything from memory; what is on disk stays there."""
        self._closed = True
        for id, entry in list(self._entries.items()):
            with entry.lock:
                self._drop(id, entry, None)
        if self._disk is not None:
            self._disk.close()

    # -- what it holds ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Sessions in memory."""
        return len(self._entries)

    def __contains__(self, id: object) -> bool:
        """Is a session of this name in memory or on disk?"""
        entry = self._entries.get(id)  # type: ignore[call-overload]
        if entry is not None and entry.session is not None and not self._expired(entry):
            return True
        return self._disk is not None and isinstance(id, str) and self._disk.known(id)

    def ids(self) -> list[str]:
        """Names of the sessions in memory and on disk."""
        names = dict.fromkeys(id for id, e in list(self._entries.items()) if e.session is not None)
        if self._disk is not None:
            names.update(dict.fromkeys(self._disk.names()))
        return list(names)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the sessions hold, as after the last change of each."""
        return self._total

    def stats(self) -> dict[str, int]:
        """Counts since the store was made, and what it holds now.

        hits, misses (of names asked for), loads (hits that came from disk), refused (records not to be trusted,
        sessions changed elsewhere), evictions (for `max_bytes`), expirations (for `ttl`), changes, widened (windows of
        the checked mode), full_encodes, sessions, nbytes.
        """
        with self._tally:
            return {**self._counts, "sessions": len(self._entries), "nbytes": self._total}

    def __enter__(self) -> SessionStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check(self, id: str) -> None:
        if self._closed:
            raise SessionError("the store is closed: make a new SessionStore")
        if not isinstance(id, str):
            raise InputTypeError(f"id must be a str, not {type(id).__name__}: a name for the session")
        if not id:
            raise InputError("id is empty: give the session a name")

    def _entry(self, id: str) -> _Entry:
        self._check(id)
        entry = self._entries.get(id)
        if entry is None:
            with self._tally:  # which whoever walks through the entries holds
                entry = self._entries.setdefault(id, _Entry())
        return entry

    def _expired(self, entry: _Entry) -> bool:
        return self.ttl is not None and entry.used > 0 and time.monotonic() - entry.used > self.ttl

    def _found(self, id: str, entry: _Entry, refuse: bool) -> Session | None:
        """The entry's session, from memory or disk."""
        expired = entry.session is not None and self._expired(entry)
        if expired:
            self._release(entry)
        # on disk it may live on: another process may have used it since
        found = entry.session if self._disk is None else self._found_on_disk(id, entry, refuse)
        if expired and found is None:
            self._count("expirations")
        return found

    def _found_on_disk(self, id: str, entry: _Entry, refuse: bool) -> Session | None:
        """The entry's session as it is on disk; from memory, if it still is what is there."""
        if entry.session is not None and not entry.session.closed and self._disk.current(id, entry.session):
            return entry.session
        self._release(entry)
        try:
            session = self._disk.load(id)
        except RecordError:
            self._count("refused")
            if refuse:
                raise
            self._disk.delete(id)
            return None
        if session is not None:
            self._count("loads")
            self._hold(id, entry, session)
        return session

    def _hold(self, id: str, entry: _Entry, session: Session) -> None:
        entry.session = session
        disk = self._disk

        def changed(session: Session, patch: Patch | None) -> None:
            if patch is not None:
                if disk is not None:
                    disk.save(id, session)
                last = session._last
                self._count("changes", *(["full_encodes"] if last.get("path") == "full" else []))
                if last.get("widened"):
                    self._count(*["widened"] * last["widened"])
            if entry.session is session:
                self._account(entry, session.nbytes)
                self._touch(id, entry)

        session._on_change = changed
        self._account(entry, session.nbytes)

    def _account(self, entry: _Entry, nbytes: int) -> None:
        with self._tally:
            if entry.dead:
                nbytes = 0
            self._total += nbytes - entry.nbytes
            entry.nbytes = nbytes

    def _use(self, id: str, entry: _Entry) -> None:
        """Its time begins anew, in memory and on disk."""
        self._touch(id, entry)
        if self._disk is not None and entry.session is not None:
            self._disk.touch(id, entry.session)

    def _touch(self, id: str, entry: _Entry) -> None:
        entry.used = time.monotonic()
        with self._tally:
            if self._entries.get(id) is entry:
                self._entries.move_to_end(id)

    def _count(self, *events: str) -> None:
        with self._tally:
            for event in events:
                self._counts[event] += 1

    def _release(self, entry: _Entry) -> None:
        """Take the session out of an entry; a holder may go on with it, on disk it stays known."""
        session, entry.session = entry.session, None
        if session is not None:
            if self._disk is None:
                session._on_change = None
            self._account(entry, 0)

    def _drop(self, id: str, entry: _Entry, event: str | None) -> None:
        """Take an entry out; its lock is held."""
        self._release(entry)
        entry.dead = True
        with self._tally:
            if self._entries.get(id) is entry:
                del self._entries[id]
            if event is not None:
                self._counts[event] += 1

    def _tidy(self) -> None:
        """Keep to the limits, by a few steps at most: a request waits for it."""
        if self.ttl is not None and time.monotonic() > self._next_sweep:
            try:
                self._sweep_some()
            except SessionError:  # what was asked for is done; a file that is in trouble is left alone for a while
                self._swept()
        while self.max_bytes is not None and self._total > self.max_bytes and self.evict():
            pass

    def _sweep_some(self) -> bool:
        """A bounded part of a sweep; True once it is done, and not due again for a while."""
        if self.ttl is None:
            return True
        in_memory = self._forget(_STEP) == _STEP
        on_disk = self._disk is not None and not self._disk.expire_some()
        if in_memory or on_disk:
            return False
        self._swept()
        return True

    def _swept(self) -> None:
        """The next sweep is due after a while."""
        self._next_sweep = time.monotonic() + (self.ttl or 0) / _SWEEPS

    def _forget(self, most: int | None) -> int:
        """Drop sessions whose time is over from memory, so many at most; returns how many were."""
        with self._tally:  # they are in order of use, so those that may go are the first
            old = itertools.takewhile(lambda item: self._expired(item[1]) or not item[1].used, self._entries.items())
            first = list(itertools.islice(old, most))
        return sum(self._dropped(id, entry, "expirations") for id, entry in first if self._expired(entry))

    def _dropped(self, id: str, entry: _Entry, event: str) -> bool:
        """Drop this one, unless it is in use."""
        if entry.session is None or not entry.lock.acquire(blocking=False):
            return False
        try:
            if entry.dead or (event == "expirations" and not self._expired(entry)):
                return False
            self._drop(id, entry, event)
            return True
        finally:
            entry.lock.release()


def _in_use(id: str, timeout: float | None) -> TimeoutError:
    return TimeoutError(f"session {id!r} is in use: others held it for longer than timeout={timeout}")
