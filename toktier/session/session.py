"""Sessions: a text that changes, and its ids kept exact by tokenizing what the change can have touched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import EngineError, InputError, InputTypeError, SessionClosedError, SpecialTokenError, TextNotKeptError
from . import forbidden, forgotten, repair
from .checks import check_text, offset
from .chunks import Chunk, ChunkList
from .ids import IdBuffer
from .patch import Patch, frozen, minimal, nothing
from .repair import WindowEngine
from .splice import Plan, appended, build, planned

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

MODES = ("certified", "checked")
COUNTS = ("calls", "certified", "checked", "full", "widened", "chars", "window_chars")
Undo = Callable[[], None]


class Session:
    """A text with its ids, changed in place; after every call the ids are those of a fresh encode of the text.

    Made by `Tokenizer.session(text)`.  Safe from several threads: one call runs at a time, and each is all or nothing,
    so an exception leaves the session as it was.

    Args:
      tokenizer, text: whose ids, and of what.
      special_tokens, add_special_tokens, engine: as for `Tokenizer.encode`; what the post-processor adds stays around
        the ids of the text (a BOS in front comes once).
      repair: "certified" or "checked"; see `toktier.session.repair`.
      keep_text: False keeps only the end of the text, and digests of the rest: `append` and `update` do what they
        always do, what needs other parts of the text raises TextNotKeptError.

    >>> import toktier
    >>> session = toktier.load("o200k_base").session("the build pipe")
    >>> patch = session.append("line")
    >>> patch.start, patch.removed, patch.ids.tolist()
    (2, 1, [29412])
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: str = "",
        *,
        special_tokens: Any = None,
        add_special_tokens: bool = False,
        repair: str = "certified",
        engine: str = "auto",
        keep_text: bool = True,
        _windows: WindowEngine | None = None,
    ) -> None:
        if repair not in MODES:
            raise InputError(f"repair={repair!r} is not known: use one of {', '.join(MODES)}")
        check_text("text", text)
        if _windows is None:
            from .window import windows

            _windows = windows(tokenizer, special_tokens, engine, add_special_tokens)
        if not keep_text and (repair != "certified" or _windows.reason or not _windows.rules.possible):
            why = _windows.reason or "repair='checked' compares with it"
            raise EngineError(f"keep_text=False is not possible here, the whole text is needed at each change: {why}")
        self.tokenizer = tokenizer
        self._keep_text = keep_text
        self._engine = _windows
        self._special_tokens = special_tokens
        self._mode = repair
        self._lock = threading.RLock()
        self._closed = False
        self._on_change: Callable[[Session, Patch | None], None] | None = None
        self._saved: Any = None
        self._ends: np.ndarray | None = None
        self._canonical: bool | None = None
        before, after = _windows.frame
        self._front, self._back = len(before), len(after)  # ids around those of the text
        self._ids = IdBuffer(np.concatenate([before, after]))
        self._chunks = ChunkList()
        self._last: dict[str, Any] = {}
        self._counts = dict.fromkeys(COUNTS, 0)
        self._patch: Patch | None = None
        if text or _windows.reason:
            try:
                self._change(0, 0, text)
            except SpecialTokenError as e:
                raise forbidden.refused(e, "text holds", text) from None

    # -- changes ---------------------------------------------------------------------------------------------------

    def append(self, text: str) -> Patch:
        """Add `text` at the end.

        Raises:
          InputTypeError: text is not a str.  InputError: as the tokenizer's encode.
          SpecialTokenError: the session forbids a special token that its text would hold.
          SessionClosedError: `close` was called.
        """
        with self._lock:
            n = self._chunks.n_chars
            return self._edit(n, n, text)

    def edit(self, start: int, stop: int, text: str) -> Patch:
        """Replace the characters [start, stop) by `text`.

        Raises:
          InputError: not 0 <= start <= stop <= len(session.text).
        """
        with self._lock:
            n = self._chunks.n_chars
            start, stop = offset("start", start, 0, n), offset("stop", stop, 0, n)
            if stop < start:
                raise InputError(f"stop={stop} lies before start={start}: give the range as start <= stop")
            return self._edit(start, stop, text)

    def truncate(self, chars: int) -> Patch:
        """Keep the first `chars` characters: a conversation rolled back."""
        with self._lock:
            n = self._chunks.n_chars
            return self._edit(offset("chars", chars, 0, n), n, "")

    def update(self, text: str) -> Patch:
        """Make `text` the session's text; what it shares with the old one, in front and behind, is found here."""
        with self._lock:
            self._open()
            check_text("text", text)
            if not self._keep_text:
                return forgotten.update(self, text)
            front = self._chunks.common_prefix(text)
            behind = self._chunks.common_suffix(text, min(self._chunks.n_chars, len(text)) - front)
            return self._edit(front, self._chunks.n_chars - behind, text[front : len(text) - behind])

    def extend_ids(self, ids: Iterable[int] | np.ndarray) -> Patch:
        """Add ids as they are, such as those a model generated; their text is not tokenized again.

        Text appended later is encoded behind them on its own, as if a text began there.  Where a change cuts one of
        them apart, that token becomes text again; the others stay.

        Raises:
          InputError: an id that the tokenizer does not have, by position and value.
          InputTypeError: not a sequence of integers.  TextNotKeptError: opened with keep_text=False.
        """
        with self._lock:
            self._open()
            if not self._keep_text:
                raise TextNotKeptError("extend_ids: given ids need their text beside them; open with keep_text=True")
            from .given import given_chunks

            array, chunks = given_chunks(self._engine, ids)
            at = len(self._ids) - self._back
            undo = self._commit(at, array[:0], array, len(self._chunks), len(self._chunks), chunks)
            self._note("given", 0, 0, 0)
            return self._done(Patch(at, 0, frozen(array)), undo)

    def retokenize(self) -> Patch:
        """Encode the whole text afresh, ids given by the caller included: afterwards `canonical` is True."""
        with self._lock:
            self._open()
            text = self._chunks.text()
            old = self._own_ids()
            encoded = self._afresh(text)
            chunks = build(self._engine, text, encoded)
            undo = self._commit(self._front, old, encoded.ids, 0, len(self._chunks), chunks)
            self._note("full", len(text), len(text), 0)
            return self._done(minimal(self._front, old, encoded.ids), undo)

    def fork(self) -> Session:
        """A second session with the same text and ids; both share memory until they differ."""
        with self._lock:
            self._open()
            other = object.__new__(Session)
            other.__dict__.update(self.__dict__)
            other._lock = threading.RLock()
            other._ids, other._chunks = self._ids.fork(), self._chunks.fork()
            other._counts, other._last = dict.fromkeys(self._counts, 0), {}
            other._on_change = other._saved = None
            return other

    def close(self) -> None:
        """Give the memory back; later calls raise SessionClosedError."""
        with self._lock:
            self._closed = True
            self._ids, self._chunks, self._ends, self._patch = IdBuffer(), ChunkList(), None, None

    # -- what it holds ---------------------------------------------------------------------------------------------

    @property
    def ids(self) -> np.ndarray:
        """int32[n], read-only, no copy.

        The view stays as it is while the session goes on.  A change of what it shows costs one copy of the ids (4 bytes
        a token) as long as it is alive, so drop it, or copy the part you keep, before the next change.
        """
        with self._lock:
            self._open()
            return self._ids.view()

    @property
    def ends(self) -> np.ndarray:
        """int64[n], read-only: exclusive ends of the tokens in the normalized text, in UTF-8 bytes.

        Built when asked for (8 bytes a token) and kept until the next change.

        Raises:
          EngineError: the reference runs this tokenizer, which tells no places.
        """
        with self._lock:
            self._open()
            self._placed()
            if self._ends is None:
                ends = self._chunks.ends()
                if self._front or self._back:
                    last = np.full(self._back, self._chunks.n_bytes)
                    ends = np.concatenate([np.zeros(self._front, np.int64), ends, last])
                ends.flags.writeable = False
                self._ends = ends
                if self._on_change is not None:
                    self._on_change(self, None)
            return self._ends

    @property
    def text(self) -> str:
        """The text, joined when asked for.

        Raises:
          TextNotKeptError: the session was opened with keep_text=False.
        """
        with self._lock:
            self._open()
            if not self._keep_text:
                raise TextNotKeptError("session.text is not kept (keep_text=False): keep it yourself, or open it anew")
            return self._chunks.text()

    @property
    def canonical(self) -> bool:
        """Are the ids what a fresh encode of the text gives?  Always, but for ids given by the caller.

        With given ids the first look after a change encodes the whole text.
        """
        with self._lock:
            self._open()
            if not self._chunks.n_given:
                return True
            if self._canonical is None:
                fresh = self._afresh(self._chunks.text()).ids
                self._canonical = bool(np.array_equal(fresh, self._own_ids()))
            return self._canonical

    @property
    def last_patch(self) -> Patch:
        """How the last change changed the ids; of a session just made, all of them."""
        with self._lock:
            self._open()
            return Patch(0, 0, self.ids.copy()) if self._patch is None else self._patch

    @property
    def special_tokens(self) -> Any:
        """What becomes of special tokens in the text; None is the reference's own default."""
        return self._special_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of memory held: text, ids, ends and their containers (forks count what they share, too)."""
        with self._lock:
            beside = (0 if a is None else a.nbytes for a in (self._ends, self._patch and self._patch.ids))
            return self._ids.nbytes + self._chunks.nbytes + sum(beside) + 1024

    @property
    def closed(self) -> bool:
        """Was `close` called?"""
        return self._closed

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._ids)

    @property
    def n_chars(self) -> int:
        """Number of characters."""
        return self._chunks.n_chars

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InputTypeError(
            "a Session does not pickle: send session.to_bytes(), and Session.from_bytes(tokenizer, data) opens it there"
        )

    def __copy__(self, memo: Any = None) -> NoReturn:
        raise InputTypeError("a Session is not copied by copy: session.fork() is a second one of the same text and ids")

    __deepcopy__ = __copy__

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.n_chars} characters, {len(self)} tokens"
        return f"<Session of {self.tokenizer.spec.name}: {state}>"

    def token_at(self, char: int) -> int:
        """Index of the token that holds the character at offset `char`.

        With a normalizer: of the token that holds the beginning of what the character became.

        Raises:
          InputError: not 0 <= char < len(session.text).  EngineError: as `ends`.
        """
        with self._lock:
            self._open()
            self._placed()
            char = offset("char", char, 0, self._chunks.n_chars - 1)
            k = self._chunks.find(char)
            at, token, _ = self._chunks.before(k)
            chunk = self._chunks.chunks[k]
            inside = char - at
            while inside and not self._engine.rules.steady(chunk.text[inside]):
                inside -= 1
            byte = self._engine.measure(chunk.text[:inside])
            return self._front + token + min(int(chunk.ends.searchsorted(byte, "right")), max(chunk.n_tokens - 1, 0))

    def explain(self) -> dict[str, Any]:
        """How the last change was made and what all of them cost.

        `last`: path (certified, checked, full, given), window (its characters), cut (characters kept in front and
        behind), widened (doublings), touched (array elements read or written).  `counts`: sums over all calls.
        `why_full`: the reason where this tokenizer's sessions encode the whole text each time.
        """
        with self._lock:
            return {
                "repair": self._mode,
                "last": dict(self._last),
                "counts": dict(self._counts),
                "copies": self._ids.copies,
                "why_full": self._engine.reason
                or ("" if self._engine.rules.possible else "no place of a text is certified as a cut"),
            }

    def to_bytes(self) -> bytes:
        """The session as one record: versioned, checksummed, bound to the tokenizer by its digest."""
        from .record import pack

        with self._lock:
            self._open()
            return pack(self)

    @classmethod
    def from_bytes(cls, tokenizer: Tokenizer, data: bytes) -> Session:
        """The session that `to_bytes` wrote.

        Raises:
          RecordError: a record that is truncated, damaged, of another version or of another tokenizer.
        """
        from .record import unpack

        return unpack(tokenizer, data)

    @classmethod
    def from_ids(cls, tokenizer: Tokenizer, ids: Iterable[int] | np.ndarray, **options: Any) -> Session:
        """A session that begins with ids given by a model: they stay as they are (`extend_ids`)."""
        session = cls(tokenizer, "", **options)
        session.extend_ids(ids)
        return session

    # -- inside ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            raise SessionClosedError("the session is closed: open a new one with tokenizer.session(text)")

    def _placed(self) -> None:
        if self._engine.reason:
            raise EngineError(f"places of tokens are not known here: {self._engine.reason}")

    def _edit(self, start: int, stop: int, text: str) -> Patch:
        self._open()
        check_text("text", text)
        if start == stop and not text:
            self._note("none", 0, 0, 0)
            return self._done(self._nothing(start))
        if self._chunks.n_given:
            from .given import around

            start, stop, text = around(self, start, stop, text)
            if start == stop and not text:
                return self._done(self._nothing(start))
        try:
            patch, undo = self._change(start, stop, text)
        except SpecialTokenError as e:  # it tells where in the window that was encoded
            raise forbidden.refused_change(self, e, start, stop, text) from None
        return self._done(patch, undo)

    def _change(self, start: int, stop: int, text: str) -> tuple[Patch, Undo]:
        """Replace characters that cut no given id apart."""
        chunks, engine = self._chunks, self._engine
        before = self._ids.touched + chunks.touched
        if self._mode == "certified" and start == chunks.n_chars and (found := appended(chunks, engine, text)):
            return self._planned(*found, len(text), before)
        change = repair.describe(chunks, start, stop, text)
        if self._mode == "checked" and engine.rules.possible:
            splice = repair.checked(chunks, engine, change, self._ids.view()[self._front :])
        else:
            splice = repair.certified(chunks, engine, change)
        return self._spliced(splice, stop - start + len(text), before)

    def _afresh(self, text: str) -> repair.Encoded:
        """The whole text, encoded anew."""
        try:
            return self._engine.encode(text)
        except SpecialTokenError as e:
            raise forbidden.refused(e, "the session's text holds", text) from None

    def _replace(self, splice: repair.Splice) -> Patch:
        before = self._ids.touched + self._chunks.touched
        return self._done(*self._spliced(splice, splice.c2 - splice.c1 + len(splice.window), before))

    def _spliced(self, splice: repair.Splice, chars: int, before: int) -> tuple[Patch, Undo]:
        return self._planned(splice, planned(self._chunks, self._engine, splice), chars, before)

    def _planned(self, splice: repair.Splice, plan: Plan, chars: int, before: int) -> tuple[Patch, Undo]:
        """Put a window's tokens in their place; `chars` (of the change) and `before` (touched) are for the counts."""
        chunks = self._chunks
        ids = splice.encoded.ids
        token = self._front + plan.token
        old = self._ids.read(token, token + plan.removed)
        patch = minimal(token, old, ids)
        gone = old[patch.start - token :][: patch.removed]
        undo = self._commit(patch.start, gone, patch.ids, plan.first, plan.last, plan.new)
        try:
            if not self._keep_text:
                forgotten.forget(chunks, plan.first, plan.first + len(plan.new))
            self._note(splice.path, len(splice.window), chars, splice.widened)
            touched = self._ids.touched + chunks.touched - before + len(old) + len(splice.window)
            for chunk in plan.new:
                touched += len(chunk.ends)
            self._last["cut"] = (splice.c1, chunks.n_chars - splice.c1 - len(splice.window))
            self._last["touched"] = touched
        except BaseException:  # an interrupt: whoever keeps the session would not hear of the change
            undo()
            raise
        return patch, undo

    def _commit(self, token: int, old: np.ndarray, ids: np.ndarray, first: int, last: int, new: list[Chunk]) -> Undo:
        """Put `ids` in place of `old` at `token`, and the chunks, together or not at all; the result takes it back."""
        old_chunks = self._chunks.chunks[first:last]
        self._chunks.reserve(len(new))
        written = self._chunks.touched
        try:
            self._ids.splice(token, len(old), ids)
            self._chunks.replace(first, last, new)
        except BaseException:
            if len(old) == len(ids):  # which of them stand there cannot be told by their number
                back = self._chunks.touched == written
            else:
                back = len(self._ids) != self._front + self._chunks.n_tokens + self._back
            if back:
                self._ids.splice(token, len(ids), old)
            raise
        self._ends = self._canonical = None

        def undo() -> None:
            self._ids.splice(token, len(ids), old)
            self._chunks.replace(first, first + len(new), old_chunks)
            self._ends = self._canonical = None

        return undo

    def _note(self, path: str, window: int, chars: int, widened: int) -> None:
        counts = self._counts
        counts["calls"] += 1
        counts["widened"] += widened
        counts["chars"] += chars
        counts["window_chars"] += window
        if path in counts:
            counts[path] += 1
        self._last = {"path": path, "window": window, "widened": widened, "touched": 0}

    def _done(self, patch: Patch, undo: Undo | None = None) -> Patch:
        """The change is made: tell whoever keeps the session, and take it back where that fails."""
        before, self._patch = self._patch, patch
        if self._on_change is not None:
            try:
                self._on_change(self, None if undo is None else patch)
            except BaseException:
                self._patch = before
                if undo is not None:
                    undo()
                raise
        return patch

    def _nothing(self, char: int) -> Patch:
        return nothing(self._front + self._chunks.locate(char, self._engine)[0])

    def _own_ids(self) -> np.ndarray:
        """Copy of the ids of the text, without those around it."""
        return self._ids.read(self._front, len(self._ids) - self._back)
