"""The tokenizer that a user holds: text to ids and back, exactly as the reference does it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from toktier import pipeline, routing
from toktier.added import NO_LITERALS, Mode
from toktier.batch import Batch, stacked_offsets
from toktier.core import Core, shared
from toktier.decode import StreamDecoder
from toktier.decode_batch import BatchDecoder
from toktier.encoded import Encoded
from toktier.errors import EngineError, InputError, InputTypeError
from toktier.explain import Explanation, explain
from toktier.pipeline import Prepared
from toktier.postprocess import Frame
from toktier.spec import Spec
from toktier.stream import CHUNK, IdStream, Progress, Readable

if TYPE_CHECKING:
    from toktier.jax.tables import Tables
    from toktier.session import Session
    from toktier.sources import Source

MODES = ("parse", "text", "forbid")
GROUP = 1 << 23  # characters of a batch that are encoded at a time: bounds the memory beside the result


class Spans(NamedTuple):
    """Ids with the places of their tokens.

    Attributes:
      ids: int32[k].
      ends: int64[k], byte offset behind each token in the normalized text (UTF-8).
      n_bytes: bytes of the normalized text.
    """

    ids: np.ndarray
    ends: np.ndarray
    n_bytes: int


class Tokenizer:
    """One tokenizer; made by `toktier.load`.  Immutable, picklable, and safe from any thread.

    `encode` returns exactly the ids that the reference returns: `tokenizers` for a tokenizer.json, `tiktoken` for a
    rank file.  Options that several methods share:

    * `special_tokens`: what becomes of special tokens such as `<|endoftext|>` that stand in the text: "parse" makes
      each its id, "text" reads them as plain text, "forbid" raises SpecialTokenError.  None is the reference's own
      default: "parse" for a tokenizer.json, "forbid" for tiktoken, "text" for a tekken.json.  For tiktoken a set of
      special tokens is taken too: those are parsed, the others are text.
    * `add_special_tokens`: also do what the tokenizer's post-processor does, such as putting a BOS in front.
    * `engine`: "auto" (the fastest exact one), "device" (the XLA program), "host" (NumPy) or "reference".  The ids are
      the same.

    >>> import toktier
    >>> tok = toktier.load("o200k_base")
    >>> tok.encode("hello world").tolist()
    [24912, 2375]
    >>> tok.decode([24912, 2375])
    'hello world'
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._core = shared(source)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._source,)

    def __repr__(self) -> str:
        return f"<toktier.Tokenizer {self.spec.name!r}: {self.vocab_size} ids as in {self.spec.reference}>"

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """The frozen specification."""
        return self._source.spec

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of everything that decides about ids; equal for equal tokenizers, whatever their names."""
        return self.spec.digest

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return self._core.decoder.size

    @property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens and their ids."""
        return {t.content: t.id for t in self.spec.added if t.special}

    @property
    def core(self) -> Core:
        """The parts behind this tokenizer (tables, engines, pipeline), made on first use."""
        return self._core

    @property
    def tables(self) -> Tables:
        """The tables of this tokenizer as a pytree of device arrays, for `toktier.jax.encode_bytes`."""
        from toktier.jax.tables import tables

        return tables(self)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, added tokens included (b"" for an id of a padded vocabulary).

        Raises:
          InputTypeError: token is not an int.  InputError: it is no id of this tokenizer.
        """
        try:
            return self._core.decoder.decode_bytes([token])
        except (InputError, InputTypeError):
            raise self._core.decoder.no_token(token) from None

    def explain(self, text: str | None = None) -> Explanation:
        """Which engine runs each part, and why; for this text, or in general.  `print` it."""
        if text is None:
            return explain(self._core, None)
        return explain(self._core, len(_checked(text)), self._lacking(text))

    # -- text to ids -----------------------------------------------------------------------------------------------

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = False,
        special_tokens: Mode | None = None,
        engine: str = "auto",
        max_length: int | None = None,
    ) -> np.ndarray:
        """The ids of a text.

        Args:
          text: any str.
          add_special_tokens, special_tokens, engine: see the class.
          max_length: keep no more than the first so many ids.

        Returns:
          int32[k].

        Raises:
          InputTypeError: text is not a str.
          InputError: an option that is not known; a lone surrogate, where the reference refuses them (`tokenizers`).
          SpecialTokenError: special_tokens is "forbid" and the text holds one.
          EngineError: the engine asked for by name cannot run this tokenizer.
        """
        _checked(text)
        mode = self._mode(special_tokens)
        name = self._engine(engine, len(text))
        ids = None
        if engine == "auto" and name == "host" and self._core.reference_is_quick(len(text)):
            with contextlib.suppress(EngineError):  # it fails on texts that the host engine takes
                ids = self._on_reference(text, mode, add_special_tokens)
        if ids is None:
            ids = self._encoded(text, mode, name, engine == "auto", add_special_tokens)
        if max_length is not None:
            ids = ids[: _length(max_length, len(ids))]
        return ids if ids.flags.writeable else ids.copy()

    def encode_batch(
        self,
        texts: Iterable[str],
        *,
        add_special_tokens: bool = False,
        special_tokens: Mode | None = None,
        engine: str = "auto",
    ) -> Batch:
        """The ids of many texts, in one launch where they fit; each row equals `encode` of its text.

        Returns:
          Batch(ids int32[k], offsets int64[n + 1]).

        Raises:
          as `encode`; messages name the text as `texts[i]`.
        """
        return self._batch(_checked_list(texts), add_special_tokens, special_tokens, engine)

    def encode_file(
        self,
        file: str | os.PathLike[str] | Readable,
        *,
        add_special_tokens: bool = False,
        special_tokens: Mode | None = None,
        engine: str = "auto",
        chunk_bytes: int = CHUNK,
        errors: str = "strict",
        progress: Progress | None = None,
    ) -> IdStream:
        """The ids of a file of any size in UTF-8, chunk by chunk: exactly those of its whole text.

        Chunks end at certified cuts, so memory follows `chunk_bytes` and not the file.  A tokenizer without such cuts
        (`explain()` says so, or its normalizer is no Unicode form) reads the whole file before it encodes.

        Args:
          file: a path, or a file opened in binary mode (read from where it stands, and left open).
          add_special_tokens, special_tokens, engine: see the class; "auto" goes by the size of the whole file.
          chunk_bytes: bytes to read at a time.
          errors: "strict", or "replace" for U+FFFD in place of bytes that are not UTF-8.
          progress: is called with the number of bytes of each block read, as `tqdm.update` wants it.

        Returns:
          IdStream: iterate over it for int32 arrays, or `.array()` for one, or `.save("ids.npy")`.  Nothing is read
          before that.

        Raises:
          as `encode`, while it is read; InputError also for bytes that are not UTF-8, with their offset.
        """
        self._engine(engine, 0)
        return IdStream(
            self,
            file,
            mode=self._mode(special_tokens),
            engine=engine,
            add_special_tokens=add_special_tokens,
            chunk_bytes=chunk_bytes,
            errors=errors,
            progress=progress,
        )

    def count(self, text: str, **options: Any) -> int:
        """The number of ids of a text; options as for `encode`."""
        return len(self.encode(text, **options))

    def encode_spans(
        self, text: str, *, special_tokens: Mode | None = None, engine: str = "auto", continued: bool = False
    ) -> Spans:
        """Ids and where each token ends, in bytes of the normalized text (the text itself where nothing normalizes it).

        Args:
          continued: the text goes on from other text, so a tokenizer that puts a space in front puts none here.

        Raises:
          as `encode`; EngineError also where the reference runs the tokenizer, which knows no such places.
        """
        _checked(text)
        prepared, encoded, _ = self._placed(text, self._mode(special_tokens), engine, continued)
        return Spans(*pipeline.finish_placed(prepared, encoded))

    def piece_starts(self, text: str, *, engine: str = "auto") -> np.ndarray:
        """int64[p]: where each piece (pre-token) begins, in bytes of the text's UTF-8; added tokens are read as text.

        With a normalizer: of the normalized text's UTF-8.  A few pre-tokenizers (Falcon's) cut inside characters; such
        a piece begins where its character does, as the reference tells it.
        """
        _checked(text)
        name = self._engine(engine, len(text))
        if name == "reference":
            return np.asarray(self._core.reference.piece_starts(text), np.int64)
        prepared = self._core.pipeline.prepare((text,), NO_LITERALS)
        if not len(prepared.buffer):
            return np.zeros(0, np.int64)
        marks = (self._core.host if name == "host" else self._core.device).piece_marks(prepared.buffer)
        for _ in range(3):
            marks = marks - (prepared.buffer[marks] & 0xC0 == 0x80)
        return np.unique(marks - np.searchsorted(prepared.spaces, marks, side="left"))

    def warmup(self, sizes: Sequence[int] | None = None, *, pieces: bool = False) -> None:
        """Compiles and loads what later calls need, so that none of them waits; a progress bar on a terminal.

        Args:
          sizes: bytes of the texts to come; None for every size that the device program is compiled for.
          pieces: `piece_starts` will be called on the device, too.
        """
        self._core.warmup()
        if not self._core.reason and routing.backend():
            self._core.device.warmup(sizes, pieces)

    # -- ids to text -----------------------------------------------------------------------------------------------

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        """The text of ids, as the reference decodes them; bytes that are not UTF-8 become U+FFFD.

        Args:
          ids: a sequence of int, or a one-dimensional integer array.
          skip_special_tokens: leave special tokens out.

        Raises:
          InputTypeError: something else than integers.
          InputError: a negative or unknown id; names its position.
        """
        return self._core.decoder.decode(ids, skip_special_tokens=skip_special_tokens)

    def decode_bytes(self, ids: Any, *, skip_special_tokens: bool = False) -> bytes:
        """The bytes of ids, before they are read as UTF-8; otherwise as `decode`."""
        return self._core.decoder.decode_bytes(ids, skip_special_tokens=skip_special_tokens)

    def decoder(self, *, skip_special_tokens: bool = False) -> StreamDecoder:
        """A decoder for ids that come one by one; it never splits a character."""
        return StreamDecoder(self._core.decoder, skip_special_tokens)

    def batch_decoder(self, rows: int, *, skip_special_tokens: bool = False) -> BatchDecoder:
        """A decoder for `rows` sequences whose ids come one a step each; it never splits a character."""
        return BatchDecoder(self._core.decoder, rows, skip_special_tokens)

    # -- sessions --------------------------------------------------------------------------------------------------

    def session(self, text: str = "", *, special_tokens: Mode | None = None, **options: Any) -> Session:
        """A text that changes, with its ids; see `toktier.Session`."""
        from toktier.session import Session

        return Session(self, text, special_tokens=special_tokens, **options)  # type: ignore[arg-type]

    def session_from_ids(self, ids: Any, **options: Any) -> Session:
        """A session that begins with ids given by a model, which stay as they are; see `Session.from_ids`."""
        from toktier.session import Session

        return Session.from_ids(self, ids, **options)

    # -- how it is done --------------------------------------------------------------------------------------------

    def _mode(self, special_tokens: Mode | None) -> Mode:
        tiktoken = self.spec.reference == "tiktoken"
        if special_tokens is None:
            return self.spec.special_default
        if isinstance(special_tokens, str):
            if special_tokens in MODES:
                return special_tokens
        elif tiktoken and isinstance(special_tokens, (set, frozenset, list, tuple)):
            chosen, known = frozenset(special_tokens), self.special_tokens
            if unknown := [t for t in chosen if t not in known]:
                raise InputError(f"special_tokens holds {unknown[0]!r}, which is no special token of {self.spec.name}")
            return chosen
        also = ", or a set of special tokens" if tiktoken else ""
        raise InputError(f"special_tokens={special_tokens!r} is not known; use one of {', '.join(MODES)}{also}")

    def _engine(self, engine: str, size: int) -> str:
        """The engine that runs: "host", "device" or "reference"."""
        if engine not in routing.ENGINES:
            raise InputError(f"engine={engine!r} is not known; use one of {', '.join(routing.ENGINES)}")
        if engine == "reference":
            return engine
        if self._core.reason:
            if engine == "auto":
                return "reference"
            raise EngineError(
                f"engine={engine!r} cannot run {self.spec.name}: {self._core.reason}; engine='auto' or "
                "engine='reference' can"
            )
        return routing.choose(size, self._core.device_started) if engine == "auto" else engine

    def _encoded(self, text: str, mode: Mode, name: str, or_host: bool, add_special_tokens: bool) -> np.ndarray:
        """int32[k]: the ids of a text from the engine of this name; `or_host` as for `_run`."""
        if name == "reference":
            return self._on_reference(text, mode, add_special_tokens)
        prepared = self._core.pipeline.prepare((text,), mode)
        if self._needs_reference(prepared, name, or_host):
            return self._on_reference(text, mode, add_special_tokens)
        ids = pipeline.finish(prepared, self._run(name, prepared, or_host))
        return self._frame.around(ids) if add_special_tokens else ids

    def _placed(self, text: str, mode: Mode, engine: str, continued: bool) -> tuple[Prepared, Encoded, str]:
        """What `encode_spans` makes its answer of: the buffer, its ids and ends, and who gave them."""
        name = self._engine(engine, len(text))
        if name == "reference":
            raise EngineError(f"there are no spans from the reference; {self._core.reason or 'choose another engine'}")
        steps = self._core.pipeline
        prepared = steps.prepare((text,), mode, continued=continued)
        if not self._needs_reference(prepared, name, engine == "auto"):
            return prepared, self._run(name, prepared, engine == "auto"), name
        if continued and steps.prefix_space:
            raise EngineError("continued=True: the reference, which this text needs, puts a space in front of it")
        return prepared, self._core.missing.placed(prepared, self._on_reference(text, mode, False)), "reference"

    def _needs_reference(self, prepared: Prepared, name: str, allowed: bool) -> bool:
        """Whether a text that is for the engine of this name holds a byte that is no token.

        Raises:
          EngineError: it does, and the reference is not allowed, since that engine was asked for by name.
        """
        at = self._core.missing.find(prepared.buffer)
        if at >= 0 and not allowed:
            why = self._core.missing.why(prepared, at)
            raise EngineError(f"engine={name!r} cannot run this text: {why}; engine='auto' or engine='reference' can")
        return at >= 0

    def _lacking(self, text: str) -> str:
        """Why this text goes to the reference though its tokenizer does not, or ""."""
        if self._core.reason or not self._core.missing.values:
            return ""
        prepared = self._core.pipeline.prepare((text,), "parse")
        at = self._core.missing.find(prepared.buffer)
        return self._core.missing.why(prepared, at) if at >= 0 else ""

    def _batch(
        self,
        texts: list[str],
        add_special_tokens: bool,
        special_tokens: Mode | None,
        engine: str,
        run: Callable[[np.ndarray], Encoded] | None = None,
        group: int = GROUP,
    ) -> Batch:
        """As `encode_batch`; `run` takes the device engine's place, for `group` characters at a time."""
        mode = self._mode(special_tokens)
        name = self._engine(engine, sum(map(len, texts)))
        if name == "reference":
            rows = [self._on_reference(text, mode, add_special_tokens) for text in texts]
            return _joined([pipeline.Rows(r, np.array([0, len(r)], np.int64)) for r in rows])
        groups = []
        for some in _groups(texts, group):
            prepared = self._core.pipeline.prepare(some, mode)
            if self._needs_reference(prepared, name, True):  # one by one: only texts with such a byte go there
                rows = [self.encode(text, special_tokens=special_tokens, engine=engine) for text in some]
                groups += [pipeline.Rows(r, np.array([0, len(r)], np.int64)) for r in rows]
                continue
            if run is not None and len(prepared.buffer):
                groups.append(pipeline.finish_rows(prepared, run(prepared.buffer)))
            else:
                groups.append(pipeline.finish_rows(prepared, self._run(name, prepared, engine == "auto")))
        batch = _joined(groups)
        return Batch(*self._frame.around_rows(batch.ids, batch.offsets)) if add_special_tokens else batch

    def _run(self, name: str, prepared: Prepared, or_host: bool) -> Encoded:
        """What the engine makes of a buffer; with `or_host`, the host engine where the device refuses."""
        if not len(prepared.buffer):
            return Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64))
        if name == "device":
            try:
                return self._core.device.encode_buffer(prepared.buffer)
            except EngineError:
                if not or_host:
                    raise
        return self._core.host.encode_buffer(prepared.buffer)

    @property
    def _frame(self) -> Frame:
        frame = self._core.frame
        assert frame is not None  # such a spec has a reason, and does not come here
        return frame

    def _on_reference(self, text: str, mode: Mode, add_special_tokens: bool) -> np.ndarray:
        return self._core.reference.encode(text, mode, add_special_tokens)


def _checked(text: Any, name: str = "text") -> str:
    if not isinstance(text, str):
        way_out = "; decode it first" if isinstance(text, (bytes, bytearray, memoryview)) else ""
        way_out = "; encode_batch takes many texts" if isinstance(text, (list, tuple)) else way_out
        raise InputTypeError(f"{name} must be a str, not {type(text).__name__}{way_out}")
    return text


def _checked_list(texts: Any) -> list[str]:
    if isinstance(texts, (str, bytes)):
        raise InputTypeError(f"texts must be a sequence of str, not one {type(texts).__name__}; encode takes one text")
    try:
        listed = list(texts)
    except TypeError as e:
        raise InputTypeError(f"texts must be a sequence of str, not {type(texts).__name__}") from e
    if not set(map(type, listed)) <= {str}:
        for k, text in enumerate(listed):
            _checked(text, f"texts[{k}]")
    return listed


def _length(max_length: Any, there: int) -> int:
    if isinstance(max_length, bool) or not isinstance(max_length, (int, np.integer)):
        raise InputTypeError(f"max_length must be an int or None, not {type(max_length).__name__}")
    if max_length < 0:
        raise InputError(f"max_length={max_length} is negative; it is the most ids to keep")
    return min(int(max_length), there)


def _groups(texts: list[str], most: int) -> Iterator[list[str]]:
    """Runs of texts of about `most` characters together."""
    if sum(map(len, texts)) <= most:
        if texts:
            yield texts
        return
    start = size = 0
    for k, text in enumerate(texts):
        if size and size + len(text) > most:
            yield texts[start:k]
            start, size = k, 0
        size += len(text)
    yield texts[start:]


def _joined(groups: list[pipeline.Rows]) -> Batch:
    if len(groups) == 1:
        return Batch(*groups[0])
    ids = np.concatenate([np.zeros(0, np.int32), *(g.ids for g in groups)])
    return Batch(ids, stacked_offsets([g.offsets for g in groups]))
