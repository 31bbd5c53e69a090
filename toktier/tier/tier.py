"""The tier itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..session import SessionStore
from ..tokenizer import Tokenizer
from .answer import PATHS, Answer
from .errors import QueueFullError, TierClosedError, UnknownSessionError, UnknownTokenizerError

if TYPE_CHECKING:
    from ..session import Session
    from .thresholds import Thresholds
    from .verifier import Verifier


# called with a session under its lock before it is changed; what it raises ends the request, and nothing is changed
Check = Callable[["Session"], object]


class Tier:
    """Serves exact ids from several tokenizers and any number of sessions."""

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
        ttl: float | None = 3600.0,
        max_session_bytes: int | None = None,
        path: str | Path | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self._tokenizers = _loaded(tokenizers)
        self._default = default or next(iter(self._tokenizers))
        self._name(default)
        file = None if path is None else Path(path) / "sessions.db" if Path(path).is_dir() else Path(path)
        self._stores = {
            name: SessionStore(tok, ttl=ttl, max_bytes=max_session_bytes, path=file)
            for name, tok in self._tokenizers.items()
        }
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="toktier-tier")
        self._max_queue, self._inside = max_queue, 0
        self._lock = threading.Lock()
        self._closed = False
        self._counts = {p: {"requests": 0, "served_bytes": 0, "scanned_bytes": 0} for p in PATHS}
        self._verifier = verifier
        if verifier is not None:
            verifier.start(self._tokenizers)

    @property
    def tokenizers(self) -> Mapping[str, Tokenizer]:
        """The tokenizers by name."""
        return self._tokenizers

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
        """The ids of a text; with a session, its text becomes this one."""
        if session is not None:
            return self.update(session, text, tokenizer, create=True, timeout=timeout)
        began, name = time.perf_counter(), self._name(tokenizer)
        tok = self._tokenizers[name]
        ids = tok.encode(text, special_tokens=special_tokens, add_special_tokens=bool(add_special_tokens))
        ids.flags.writeable = False
        size = len(text.encode("utf-8", "surrogatepass"))
        path = tok.explain(text).engine
        return self._answer(began, ids, path, size, size, None, name, None, text, special_tokens, add_special_tokens)

    def append(
        self,
        session: str,
        text: str,
        tokenizer: str | None = None,
        *,
        create: bool = False,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """Adds text at the end of a session."""
        return self._change(session, tokenizer, create, lambda s: s.append(text), check)

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
        """Replaces characters [start, stop) of a session."""
        return self._change(session, tokenizer, False, lambda s: s.edit(start, stop, text), check)

    def update(
        self,
        session: str,
        text: str,
        tokenizer: str | None = None,
        *,
        create: bool = False,
        timeout: float | None = None,
        check: Check | None = None,
    ) -> Answer:
        """Makes a text the session's text."""
        return self._change(session, tokenizer, create, lambda s: s.update(text), check)

    def delete(self, session: str, tokenizer: str | None = None) -> bool:
        """Forgets a session; says whether there was one."""
        return self._stores[self._name(tokenizer)].delete(session)

    def session_ids(self, session: str, tokenizer: str | None = None) -> np.ndarray:
        """int32[n], read-only: the ids of a session."""
        found = self._stores[self._name(tokenizer)].get(session)
        if found is None:
            raise UnknownSessionError(f"session={session!r} is not known: make it with encode(text, session=...)")
        return found.ids

    def session_state(self, session: str, tokenizer: str | None = None) -> tuple[int, np.ndarray]:
        """Characters of a session's text and its ids (int32[n], read-only), of the same moment."""
        found = self._stores[self._name(tokenizer)].get(session)
        if found is None:
            raise UnknownSessionError(f"session={session!r} is not known: make it with encode(text, session=...)")
        with found._lock:
            return found.n_chars, found.ids

    async def encode_async(self, *args: Any, **options: Any) -> Answer:
        """As `encode`."""
        return await self._awaited(self.encode, *args, **options)

    async def append_async(self, *args: Any, **options: Any) -> Answer:
        """As `append`."""
        return await self._awaited(self.append, *args, **options)

    async def edit_async(self, *args: Any, **options: Any) -> Answer:
        """As `edit`."""
        return await self._awaited(self.edit, *args, **options)

    async def update_async(self, *args: Any, **options: Any) -> Answer:
        """As `update`."""
        return await self._awaited(self.update, *args, **options)

    def stats(self) -> dict[str, Any]:
        """Counts."""
        with self._lock:
            counts = {p: dict(c) for p, c in self._counts.items()}
        return {
            "paths": counts,
            "sessions": {name: store.stats() for name, store in self._stores.items()},
            "verifier": None if self._verifier is None else self._verifier.stats(),
        }

    def close(self) -> None:
        """Finishes what runs and closes everything."""
        self._closed = True
        self._pool.shutdown(wait=True)
        for store in self._stores.values():
            store.close()
        if self._verifier is not None:
            self._verifier.close()

    def __enter__(self) -> Tier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Tier:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    async def _awaited(self, call: Callable[..., Answer], *args: Any, **options: Any) -> Answer:
        if self._inside >= self._max_queue:
            raise QueueFullError(f"max_queue={self._max_queue} requests are in the tier already: send it later")
        self._inside += 1
        try:
            return await asyncio.wrap_future(self._pool.submit(call, *args, **options))
        finally:
            self._inside -= 1

    def _name(self, tokenizer: str | None) -> str:
        if self._closed_now():
            raise TierClosedError("the tier is closed: make a new Tier")
        name = self._default if tokenizer is None else tokenizer
        if name not in self._tokenizers:
            known = ", ".join(self._tokenizers)
            raise UnknownTokenizerError(f"tokenizer={name!r} is not known: this tier has {known}")
        return name

    def _closed_now(self) -> bool:
        return getattr(self, "_closed", False)

    def _change(
        self,
        session: str,
        tokenizer: str | None,
        create: bool,
        change: Callable[[Session], Any],
        check: Check | None,
    ) -> Answer:
        began, name = time.perf_counter(), self._name(tokenizer)
        store = self._stores[name]
        found = store.get(session)
        hit = found is not None
        if found is None:
            if not create:
                raise UnknownSessionError(f"session={session!r} is not known: make it with encode(text, session=...)")
            found = store.get_or_create(session, "")
        with found._lock:
            try:
                if check is not None:
                    check(found)
                patch = change(found)
            except BaseException:
                if not hit:
                    store.delete(session)
                raise
            ids, served, scanned, text = found.ids, found._chunks.n_bytes, found._last["window"], found.text
        path = "reference" if found._engine.reason else "session" if hit else "host"
        return self._answer(began, ids, path, served, scanned, patch, name, session, text, None, False)

    def _answer(
        self,
        began: float,
        ids: np.ndarray,
        path: str,
        served: int,
        scanned: int,
        patch: Any,
        name: str,
        session: str | None,
        text: str,
        special_tokens: Any,
        add_special_tokens: bool | None,
    ) -> Answer:
        with self._lock:
            counts = self._counts[path]
            counts["requests"] += 1
            counts["served_bytes"] += served
            counts["scanned_bytes"] += scanned
        if self._verifier is not None:
            self._verifier.offer(name, text, ids, special_tokens, bool(add_special_tokens), session)
        seconds = time.perf_counter() - began
        return Answer(ids, path, f"{path} path", served, scanned, patch, name, session, 1, 0.0, seconds)


def _loaded(tokenizers: Any) -> dict[str, Tokenizer]:
    from .. import load

    if not isinstance(tokenizers, Mapping):
        tok = tokenizers if isinstance(tokenizers, Tokenizer) else load(tokenizers)
        return {tok.spec.name: tok}
    if not tokenizers:
        raise InputError("tokenizers is empty: a tier needs one tokenizer or more")
    return {name: t if isinstance(t, Tokenizer) else load(t) for name, t in tokenizers.items()}
