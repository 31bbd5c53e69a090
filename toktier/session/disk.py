"""Sessions in a SQLite file: each chunk is a row, so a change writes the chunks that it replaced and one list of them.

The write-ahead log makes every committed call survive the death of the process.  A session has a version; who wants to
write one that somebody else changed meanwhile is told, and writes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, InputTypeError, RecordError, SessionError
from . import record
from .chunks import Chunk
from .session import Session

FORMAT = 1
_WAIT = 60.0  # seconds to wait for another process's write
_STALE = 1 / 16  # of `ttl`: by so much what the file says of a session's last use may lie behind
_STEP = 64  # sessions that a step of `expire` looks at
_SCHEMA = """
CREATE TABLE IF NOT EXISTS session (
    space TEXT, id TEXT, version INTEGER NOT NULL, used REAL NOT NULL, meta TEXT NOT NULL, chunks BLOB NOT NULL,
    checksum BLOB NOT NULL, PRIMARY KEY (space, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunk (
    space TEXT, id TEXT, number INTEGER, data BLOB NOT NULL, PRIMARY KEY (space, id, number)
);
"""
# The key begins with the space, of which there are few: from one to the next, each is asked for the name.
_BY_NAME = """
WITH RECURSIVE spaces(space) AS (
    SELECT min(space) FROM session
    UNION ALL SELECT (SELECT min(space) FROM session WHERE space > spaces.space) FROM spaces WHERE space IS NOT NULL
)
SELECT meta FROM spaces CROSS JOIN session USING (space) WHERE id = ?
"""


class _Saved:
    """What of a session is on disk: its version, when it was used, and each chunk's number by identity.

    So the chunks are kept alive.
    """

    __slots__ = ("chunks", "numbers", "used", "version")

    def __init__(self) -> None:
        self.version = 0
        self.used = 0.0
        self.numbers: dict[int, int] = {}
        self.chunks: list[Chunk] = []


def checked_path(path: Any) -> Path:
    """The path of a store.

    Raises:
      InputTypeError: not a str or a Path.  InputError: it names no file.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InputTypeError(
            f"path must be a str or a Path, not {type(path).__name__}: name a file for the sessions, or leave it out "
            "to keep them in memory"
        )
    if name in ("", ":memory:") or "\0" in name:
        raise InputError(f"path={name!r} names no file: leave it out to keep the sessions in memory")
    return Path(name)


class Disk:
    """The file of a store.  Sessions of other tokenizers, or of other `special_tokens`, live in it side by side."""

    def __init__(self, path: Path, engine: Any, tokenizer: Any, options: dict[str, Any], ttl: float | None) -> None:
        self._path, self._engine, self._tokenizer, self._options, self._ttl = path, engine, tokenizer, options, ttl
        special = options["special_tokens"]
        special = special if special is None or isinstance(special, str) else sorted(special)
        space = [engine.digest, special, engine.framed, *(["unplaced"] if engine.reason else [])]
        self._space = hashlib.sha256(json.dumps(space).encode()).hexdigest()
        self._epoch = time.time() - time.monotonic()  # so that a clock set anew forgets no session, and keeps none
        self._idle: deque[tuple[int, sqlite3.Connection]] = deque()
        self._closed = False
        self._looked = ""  # the session that the last step of `expire` looked at
        try:
            with self._connection() as db:
                db.execute("BEGIN IMMEDIATE")
                found = db.execute("PRAGMA user_version").fetchone()[0]
                if found not in (0, FORMAT):
                    raise SessionError(
                        f"path={str(path)!r} is of format {found}, and this toktier writes {FORMAT}: use another file"
                    )
                if found == 0 and db.execute("SELECT 1 FROM sqlite_master").fetchone():  # somebody else's tables
                    raise SessionError(f"path={str(path)!r} {_NO_STORE}")
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {FORMAT}")
                db.execute("COMMIT")
        except BaseException:
            self.close()
            raise

    def create(self, id: str, session: Session) -> None:
        """Write a session that has no version yet, over whatever had the name."""
        session._saved = _Saved()
        self._write(id, session, fresh=True)

    def save(self, id: str, session: Session) -> None:
        """Write what changed.

        Raises:
          SessionError: another process, or a second session of the same name, changed it; this one is then closed.
        """
        if not self._write(id, session, fresh=False):
            session._closed = True
            raise SessionError(f"session {id!r} was changed elsewhere since it was read: get it from the store again")

    def current(self, id: str, session: Session) -> bool:
        """Is the session what is on disk?"""
        with self._connection() as db:
            row = db.execute("SELECT version FROM session WHERE space=? AND id=?", (self._space, id)).fetchone()
        return row is not None and row[0] == session._saved.version

    def load(self, id: str) -> Session | None:
        """The session of this name, or None.

        Raises:
          RecordError: what is stored cannot be trusted.
        """
        with self._connection() as db:
            db.execute("BEGIN")
            try:
                row = db.execute(
                    "SELECT version, used, meta, chunks, checksum FROM session WHERE space=? AND id=?",
                    (self._space, id),
                ).fetchone()
                rows = db.execute("SELECT number, data FROM chunk WHERE space=? AND id=?", (self._space, id)).fetchall()
            finally:
                db.execute("COMMIT")
        if row is None:
            return None
        version, used, meta, numbers, checksum = row
        if used < self._oldest():
            self._forget(id, self._oldest())
            return None
        what = f"the stored session {id!r}"
        if self._checksum(id, version, meta, numbers) != checksum:
            raise RecordError(f"{what} is damaged: its checksum does not hold; delete it, or open it from its text")
        data = dict(rows)
        saved, chunks, ids = _Saved(), [], []
        for number in np.frombuffer(numbers, "<i8").tolist():
            if number not in data:
                raise RecordError(f"{what} is truncated: a part is missing; delete it, or open it from its text")
            parts = record.decode(data[number], what)
            if parts.meta != {"number": number, "id": id} or len(parts.chunks) != 1:
                raise RecordError(f"{what} holds a part of something else; delete it, or open it from its text")
            saved.numbers[_key(parts.chunks[0])] = number
            chunks += parts.chunks
            ids.append(parts.ids)
        all_ids = np.concatenate([np.zeros(0, np.int32), *ids])
        session = record.restore(self._tokenizer, record.Parts(chunks, all_ids, json.loads(meta)), what, self._engine)
        saved.version, saved.used, saved.chunks = version, used, list(session._chunks.chunks)
        session._saved = saved
        return session

    def delete(self, id: str) -> bool:
        """Forget a session; says whether there was one."""
        with self._writing() as db:
            gone = db.execute("DELETE FROM session WHERE space=? AND id=?", (self._space, id)).rowcount
            db.execute("DELETE FROM chunk WHERE space=? AND id=?", (self._space, id))
        return gone > 0

    def touch(self, id: str, session: Session) -> None:
        """The session is in use.  Written now and then only: a reader would pay for a write each time."""
        now = self._now()
        if self._ttl is None or now - session._saved.used < _STALE * self._ttl:
            return
        # the work is done; where the file cannot be written now, the next use tries again
        with contextlib.suppress(SessionError), self._writing() as db:
            db.execute("UPDATE session SET used=? WHERE space=? AND id=?", (now, self._space, id))
            session._saved.used = now

    def expire(self) -> None:
        """Forget what was not used for `ttl` seconds."""
        self._looked = ""
        while not self.expire_some():
            pass

    def expire_some(self) -> bool:
        """A step of `expire`: looks at some sessions and forgets one at most.

        Returns:
          whether it has come to the end; the next step then begins anew.
        """
        if self._ttl is None:
            return True
        with self._connection() as db:
            query = "SELECT id, used FROM session WHERE space=? AND id>? ORDER BY id LIMIT ?"
            rows = db.execute(query, (self._space, self._looked, _STEP)).fetchall()
        now, limit = self._now(), self._oldest()
        if ahead := [id for id, used in rows if used > now + self._ttl]:  # by a process whose clock was wrong
            with self._writing() as db:
                query = "UPDATE session SET used=? WHERE space=? AND id=? AND used>?"
                db.executemany(query, [(now, self._space, id, now + self._ttl) for id in ahead])
        old = next((id for id, used in rows if used < limit), None)
        if old is not None:
            self._forget(old, limit)
        done = old is None and len(rows) < _STEP
        self._looked = "" if done else rows[-1][0] if old is None else old
        return done

    def known(self, id: str) -> bool:
        """Is there a session of this name?"""
        with self._connection() as db:
            query = "SELECT 1 FROM session WHERE space=? AND id=? AND used>=?"
            return db.execute(query, (self._space, id, self._oldest())).fetchone() is not None

    def names(self) -> list[str]:
        """All names."""
        with self._connection() as db:
            return [row[0] for row in db.execute("SELECT id FROM session WHERE space=?", (self._space,)).fetchall()]

    def options_of(self, id: str) -> list[dict[str, Any]]:
        """The options of all sessions of this name and tokenizer, whatever they are: special_tokens, add, unplaced."""
        with self._connection() as db:
            found = [json.loads(row[0]) for row in db.execute(_BY_NAME, (id,)).fetchall()]
        return [meta for meta in found if meta.get("spec") == self._engine.digest]

    def close(self) -> None:
        """Close the connections that nobody uses; the others follow when they are given back."""
        self._closed = True
        while self._idle:
            self._idle.pop()[1].close()

    def _now(self) -> float:
        """Seconds since 1970 by the clock as it was when the file was opened, and by the monotonic one since."""
        return self._epoch + time.monotonic()

    def _oldest(self) -> float:
        """What was last used before that has expired; rather a little later than too early."""
        return 0.0 if self._ttl is None else self._now() - (1 + _STALE) * self._ttl

    def _forget(self, id: str, limit: float) -> None:
        """Forget a session, unless it was used meanwhile."""
        with self._writing() as db:
            query = "DELETE FROM session WHERE space=? AND id=? AND used<?"
            if db.execute(query, (self._space, id, limit)).rowcount:
                db.execute("DELETE FROM chunk WHERE space=? AND id=?", (self._space, id))

    def _write(self, id: str, session: Session, fresh: bool) -> bool:
        """Write the chunks that are new, in one transaction; False where the version on disk is another."""
        saved: _Saved = session._saved
        chunks = session._chunks.chunks
        known = {} if fresh else saved.numbers
        number = max(known.values(), default=0)
        numbers: dict[int, int] = {}
        rows = []
        for k, chunk in enumerate(chunks):
            key = _key(chunk)
            if (old := known.get(key)) is not None:
                numbers[key] = old
                continue
            number += 1
            numbers[key] = number
            token = session._front + session._chunks.before(k)[1]
            ids = session._ids.read(token, token + chunk.n_tokens)
            rows.append((self._space, id, number, record.encode([chunk], ids, {"number": number, "id": id})))
        gone = [(self._space, id, n) for key, n in known.items() if key not in numbers]
        order = np.array(list(numbers.values()), "<i8").tobytes()
        meta = json.dumps(record.meta(session), sort_keys=True)
        now = self._now()
        with self._writing() as db:
            query = "SELECT version FROM session WHERE space=? AND id=?"
            found = db.execute(query, (self._space, id)).fetchone()
            if fresh:
                db.execute("DELETE FROM chunk WHERE space=? AND id=?", (self._space, id))
            elif found is None or found[0] != saved.version:
                return False
            # a name that is made anew goes on counting, so that no older session of that name is taken for it
            version = max(found[0] if found else time.time_ns(), saved.version) + 1
            if gone:
                db.executemany("DELETE FROM chunk WHERE space=? AND id=? AND number=?", gone)
            db.executemany("INSERT INTO chunk VALUES (?, ?, ?, ?)", rows)
            db.execute(
                "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._space, id, version, now, meta, order, self._checksum(id, version, meta, order)),
            )
        saved.version, saved.used, saved.numbers, saved.chunks = version, now, numbers, list(chunks)
        return True

    def _checksum(self, id: str, version: int, meta: str, numbers: bytes) -> bytes:
        head = json.dumps([self._space, id, version, meta]).encode()
        return hashlib.sha256(head + numbers).digest()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed at the end, rolled back by an exception."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of this process that no other thread uses."""
        db = None
        while self._idle and db is None:
            try:
                pid, db = self._idle.pop()
            except IndexError:
                break
            if pid != os.getpid():  # opened before a fork: never to be used or closed here
                _inherited.append(db)
                db = None
        if db is None:
            if self._closed:
                raise SessionError("the store is closed: make a new SessionStore")
            db = self._opened()
        try:
            yield db
        except sqlite3.Error as e:
            db.close()
            db = None
            raise SessionError(f"path={str(self._path)!r}: SQLite says {e}; the session is as it was") from e
        finally:
            if db is not None:
                if self._closed:
                    db.close()
                else:
                    self._idle.append((os.getpid(), db))

    def _opened(self) -> sqlite3.Connection:
        """A new connection.

        Raises:
          SessionError: the path is no file of SQLite's, and none can be made there.
        """
        db = None
        try:
            db = sqlite3.connect(self._path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
        except BaseException as e:
            if db is not None:
                db.close()
            if not isinstance(e, sqlite3.Error):
                raise
            why = _why_closed(self._path, getattr(e, "sqlite_errorcode", 0))
            raise SessionError(f"path={str(self._path)!r} {why} (SQLite says {e})") from e
        return db


_inherited: list[sqlite3.Connection] = []
_NO_STORE = "is not a file of sessions: name one that is not there yet, or one that a store has made"


def _why_closed(path: Path, code: int) -> str:
    """Why SQLite does not open a path, and the way out; `code` is SQLite's."""
    folder = path.parent
    if path.is_dir():
        return f"is a folder: name a file in it, such as {str(path / 'sessions.db')!r}"
    if not folder.exists():
        return f"cannot be made, since there is no folder {str(folder)!r}: make it first, or name another"
    if not folder.is_dir():
        return f"cannot be made, since {str(folder)!r} is no folder: name a file in a folder"
    if code == sqlite3.SQLITE_NOTADB:
        return _NO_STORE
    if not os.access(path if path.exists() else folder, os.R_OK | os.W_OK):
        return "may not be written by this process: give it the right to, or name another"
    return "cannot be opened now; the sessions are as they were"


def _key(chunk: Chunk) -> int:
    return id(chunk)
