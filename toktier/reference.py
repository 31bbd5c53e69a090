"""The reference engines, made lazily: what they return is the truth that everything else is compared with.

A `Reference` is immutable for its users, safe from any thread, and picklable; it holds a recipe (plain data) and makes
the native engine from it on first use.  Native engines are never changed once made: `tokenizers` has a switch that
makes special tokens plain text, and so there are two engines instead of one that is switched back and forth.
"""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from toktier.errors import EngineError, InputError, InputTypeError, SourceError, SpecialTokenError
from toktier.locks import MakingLock
from toktier.spec import Spec

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

T = TypeVar("T")
Special = str | AbstractSet[str] | None
_MAX_ID = 1 << 32


class ExtraToken(NamedTuple):
    """An added token put on top of a tokenizer.json; the reference chooses its id."""

    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    only_if_new: bool = False  # left alone if there is an added token of this content, whatever its flags


class TokenizerFile(NamedTuple):
    """How to make a `tokenizers.Tokenizer` again: from a file that must not have changed, or from the text itself.

    Attributes:
      path: the tokenizer.json, or None.
      sha256: digest (hex) of the file's bytes.
      text: the JSON, where there is no file.
      extra: added tokens that the file lacks, in the order in which they are added.
    """

    path: str | None
    sha256: str
    text: str
    extra: tuple[ExtraToken, ...] = ()

    def read(self) -> bytes:
        """The JSON, checked to be what was loaded.

        Raises:
          SourceError: the file is gone or has changed.
        """
        if self.path is None:
            return self.text.encode()
        try:
            content = Path(self.path).read_bytes()
        except OSError as e:
            raise SourceError(f"{self.path}: cannot be read again ({e.strerror}); load the tokenizer anew") from e
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise SourceError(f"{self.path}: has changed since it was loaded; load the tokenizer anew")
        return content

    def build(self, special_as_text: bool = False) -> tokenizers.Tokenizer:
        """The native engine.

        Raises:
          SourceError: `tokenizers` refuses it.
        """
        import tokenizers

        content = self.read()
        where = self.path or "tokenizer"
        try:
            made = unpanicked(lambda: tokenizers.Tokenizer.from_buffer(content))
            if self.extra:
                there = {t.content for t in made.get_added_tokens_decoder().values()}
                wanted = [t._asdict() for t in self.extra if not (t.only_if_new and t.content in there)]
                more = [tokenizers.AddedToken(**{k: v for k, v in t.items() if k != "only_if_new"}) for t in wanted]
                unpanicked(lambda: made.add_tokens(more))
        except Exception as e:
            raise SourceError(f"{where}: `tokenizers` refuses it: {e}") from e
        made.encode_special_tokens = special_as_text
        return made


class Reference(abc.ABC):
    """One of the two reference engines behind one set of methods.

    `special` says what becomes of special tokens in a text: "parse" (their ids), "text" (plain text), "forbid"
    (SpecialTokenError), None (the tokenizer's own default), or for tiktoken a set of them to parse while the others are
    text.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._lock = MakingLock()
        self._made: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_made")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=MakingLock(), _made={})

    @property
    def started(self) -> bool:
        """Whether the native engine was made already."""
        return bool(self._made)

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gives, made by the first thread that asks."""
        if name not in self._made:
            with self._lock:
                if name not in self._made:
                    self._made[name] = make()
        return self._made[name]

    @abc.abstractmethod
    def encode(self, text: str, special: Special = None, add_special_tokens: bool = False) -> np.ndarray:
        """int32[k]: the ids.

        Raises:
          InputTypeError: `text` is not a str.
          InputError: the text holds a lone surrogate and the engine refuses those; an unknown `special`.
          SpecialTokenError: `special` is "forbid" and the text holds a special token.
          EngineError: the engine itself fails on this text.
        """

    @abc.abstractmethod
    def encode_offsets(
        self, text: str, special: Special = None, add_special_tokens: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids int32[k] and the place of each token in `text` as int64[k, 2] (start, stop in characters).

        Errors are those of `encode`.  A token that ends within a character reaches to that character's end.
        """

    def encode_batch(
        self, texts: Iterable[str], special: Special = None, add_special_tokens: bool = False
    ) -> list[np.ndarray]:
        """The ids of each text, one by one.

        No engine is asked for a batch: it would start threads of its own, which a later fork could not carry along.
        """
        return [self.encode(text, special, add_special_tokens) for text in texts]

    def encode_aside(self, text: str, special: Special = None, add_special_tokens: bool = False) -> np.ndarray:
        """As `encode`, for a long text in a process that has other things to do meanwhile."""
        return self.encode(text, special, add_special_tokens)

    @abc.abstractmethod
    def decode_bytes(self, ids: Sequence[int], skip_special_tokens: bool = False) -> bytes:
        """The bytes of the ids; errors as `decode`."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of the ids.

        Raises:
          InputError: an id that the engine does not take; names position and value.
        """

    @abc.abstractmethod
    def normalize(self, text: str) -> str:
        """The text as the normalizer leaves it."""

    @abc.abstractmethod
    def pieces(self, text: str) -> list[tuple[int, int]]:
        """(start, stop) in characters of each piece of a text that holds no added token; nothing is normalized."""

    def piece_starts(self, text: str) -> np.ndarray:
        """int64[p]: where pieces begin, in bytes of the UTF-8 of the normalized text."""
        normalized = self.normalize(text)
        starts = np.unique(np.array([start for start, _ in self.pieces(normalized)], np.int64))
        return _byte_offsets(normalized)[starts]

    def _mode(self, special: Special) -> Special:
        if special is None:
            return self.spec.special_default
        if special not in ("parse", "text", "forbid"):
            raise InputError(f"special={special!r} is not known; use 'parse', 'text' or 'forbid'")
        return special

    @functools.cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(t.id for t in self.spec.added if t.special)


class HuggingFaceReference(Reference):
    """`tokenizers`."""

    def __init__(self, spec: Spec, recipe: TokenizerFile) -> None:
        super().__init__(spec)
        self.recipe = recipe

    @property
    def native(self) -> tokenizers.Tokenizer:
        """The engine itself.  Do not change it."""
        return self._once("parse", self.recipe.build)

    @property
    def _as_text(self) -> tokenizers.Tokenizer:
        return self._once("text", lambda: self.recipe.build(special_as_text=True))

    def encode(self, text: str, special: Special = None, add_special_tokens: bool = False) -> np.ndarray:
        return np.array(self._encoding(text, special, add_special_tokens).ids, np.int32)

    def encode_aside(self, text: str, special: Special = None, add_special_tokens: bool = False) -> np.ndarray:
        """As `encode`, but other threads of this process go on meanwhile, and it takes a third of the time.

        `encode` holds the interpreter until it has done; a batch of one, without offsets, does not.  `tokenizers` may
        start threads of its own for it, and turns them off in a process that is forked later.
        """
        _check_str(text)
        mode = self._mode(special)
        if mode == "forbid":
            return self.encode(text, special, add_special_tokens)
        engine = self._as_text if mode == "text" else self.native
        try:
            (encoding,) = unpanicked(lambda: engine.encode_batch_fast([text], add_special_tokens=add_special_tokens))
        except Exception as e:
            _refuse_surrogates(text, e)
            raise EngineError(f"`tokenizers` fails on this text of {len(text)} characters: {e}") from e
        return np.array(encoding.ids, np.int32)

    def encode_offsets(
        self, text: str, special: Special = None, add_special_tokens: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        encoding = self._encoding(text, special, add_special_tokens)
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def _encoding(self, text: str, special: Special, add_special_tokens: bool) -> tokenizers.Encoding:
        _check_str(text)
        mode = self._mode(special)
        engine = self._as_text if mode == "text" else self.native
        try:
            encoding = unpanicked(lambda: engine.encode(text, add_special_tokens=False))
            if mode == "forbid":
                self._forbid(text, encoding)
            if add_special_tokens:
                encoding = unpanicked(lambda: engine.encode(text, add_special_tokens=True))
            return encoding
        except SpecialTokenError:
            raise
        except Exception as e:
            _refuse_surrogates(text, e)
            raise EngineError(f"`tokenizers` fails on this text of {len(text)} characters: {e}") from e

    def _forbid(self, text: str, encoding: tokenizers.Encoding) -> None:
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._special_ids:
                content = next(t.content for t in self.spec.added if t.id == token)
                at = text.find(content, start, stop)
                raise _forbidden(content, at if at >= 0 else start)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        listed = _listed(ids)
        try:
            return unpanicked(lambda: self.native.decode(listed, skip_special_tokens=skip_special_tokens))
        except Exception as e:
            raise EngineError(f"`tokenizers` fails to decode {len(listed)} ids: {e}") from e

    def decode_bytes(self, ids: Sequence[int], skip_special_tokens: bool = False) -> bytes:
        return self.decode(ids, skip_special_tokens).encode()

    def normalize(self, text: str) -> str:
        normalizer = self.native.normalizer
        return text if normalizer is None else self._on_text(text, lambda: normalizer.normalize_str(text))

    def pieces(self, text: str) -> list[tuple[int, int]]:
        splitter = self.native.pre_tokenizer
        if splitter is None:
            return [(0, len(text))] if text else []
        return [span for _, span in self._on_text(text, lambda: splitter.pre_tokenize_str(text))]

    @staticmethod
    def _on_text(text: str, call: Callable[[], T]) -> T:
        _check_str(text)
        try:
            return unpanicked(call)
        except Exception as e:
            _refuse_surrogates(text, e)
            raise EngineError(f"`tokenizers` fails on this text of {len(text)} characters: {e}") from e


class TiktokenReference(Reference):
    """`tiktoken`; everything it needs is in the spec."""

    @property
    def native(self) -> tiktoken.Encoding:
        """The engine itself."""
        return self._once("native", self._build)

    def _build(self) -> tiktoken.Encoding:
        blob, ends = self.spec.token_blob.tobytes(), self.spec.token_offsets.tolist()
        ranks = {blob[a:b]: i for i, (a, b) in enumerate(itertools.pairwise(ends)) if a < b}
        special = {t.content: t.id for t in self.spec.added}
        return build_encoding(self.spec.name, json.loads(self.spec.pretokenizer)["pattern"], ranks, special)

    def encode(self, text: str, special: Special = None, add_special_tokens: bool = False) -> np.ndarray:
        return self._encode(text, special)[0]

    def encode_offsets(
        self, text: str, special: Special = None, add_special_tokens: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        ids, repaired = self._encode(text, special)
        lengths = np.array([len(self.native.decode_single_token_bytes(i)) for i in ids.tolist()], np.int64)
        stops = np.cumsum(lengths)
        at = _byte_offsets(repaired)
        starts = np.searchsorted(at, stops - lengths, side="right") - 1
        return ids, np.stack([starts, np.searchsorted(at, stops, side="left")], 1)

    def _encode(self, text: str, special: Special) -> tuple[np.ndarray, str]:
        """The ids, and the text that they are for: `text` with surrogates repaired."""
        _check_str(text)
        mode = special if isinstance(special, AbstractSet) else self._mode(special)
        if mode == "forbid":
            self._forbid(text)
        allowed: Any = mode if isinstance(mode, AbstractSet) else "all" if mode == "parse" else set()
        try:
            try:
                return self._ids(text, allowed), text
            except UnicodeEncodeError:
                # What tiktoken's `encode` does and `encode_to_numpy` leaves out: pairs meet, lone halves become U+FFFD.
                repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                return self._ids(repaired, allowed), repaired
        except Exception as e:
            raise EngineError(f"`tiktoken` fails on this text of {len(text)} characters: {e}") from e

    def _ids(self, text: str, allowed: Any) -> np.ndarray:
        native = self.native
        return unpanicked(lambda: native.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())).view(
            np.int32
        )

    def _forbid(self, text: str) -> None:
        found = [(at, -len(t.content), t.content) for t in self.spec.added if (at := text.find(t.content)) >= 0]
        if found:
            at, _, content = min(found)
            raise _forbidden(content, at)

    def decode_bytes(self, ids: Sequence[int], skip_special_tokens: bool = False) -> bytes:
        listed = _listed(ids)
        kept = [i for i in listed if i not in self._special_ids] if skip_special_tokens else listed
        try:
            return unpanicked(lambda: self.native.decode_bytes(kept))
        except KeyError as e:
            at = next(k for k, i in enumerate(listed) if not self._known(i))
            raise InputError(f"ids[{at}] is {listed[at]}, which is no token of {self.spec.name}") from e

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self.decode_bytes(ids, skip_special_tokens).decode("utf-8", "replace")

    def _known(self, token: int) -> bool:
        try:
            self.native.decode_single_token_bytes(token)
        except KeyError:
            return False
        return True

    def normalize(self, text: str) -> str:
        _check_str(text)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if _surrogate(text) >= 0 else text

    def pieces(self, text: str) -> list[tuple[int, int]]:
        from toktier.pretok import blackbox

        return list(blackbox.splits(self.spec.pretokenizer, "tiktoken", [text])[0])


def build_encoding(name: str, pattern: str, ranks: dict[bytes, int], special: dict[str, int]) -> tiktoken.Encoding:
    """A `tiktoken.Encoding`.

    Raises:
      SourceError: tiktoken refuses it, such as for a pattern that is no regex.
    """
    import tiktoken

    try:
        return unpanicked(
            lambda: tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        )
    except Exception as e:
        raise SourceError(f"{name}: `tiktoken` refuses it: {e}; check pattern= and special_tokens=") from e


def unpanicked(call: Callable[[], T]) -> T:
    """What `call` returns; a panic of a native library, which is no Exception, becomes an EngineError."""
    try:
        return call()
    except BaseException as e:
        if type(e).__module__ == "pyo3_runtime":
            raise EngineError(f"the native library panicked: {e}") from None
        raise


def _check_str(text: Any) -> None:
    if not isinstance(text, str):
        raise InputTypeError(f"text must be a str, not {type(text).__name__}")


def _surrogate(text: str) -> int:
    """Where the first lone surrogate of a text is, or -1."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        return e.start
    return -1


def _refuse_surrogates(text: str, cause: Exception) -> None:
    if (at := _surrogate(text)) >= 0:
        raise InputError(
            f"text[{at}] is the lone surrogate {text[at]!r}, which `tokenizers` refuses; replace it, for example by "
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
        ) from cause


def _forbidden(content: str, at: int) -> SpecialTokenError:
    return SpecialTokenError(
        f"the text holds the special token {content!r} at character {at}; pass special_tokens='parse' to read it as "
        "the special token, or special_tokens='text' to read it as plain text",
        content,
    )


def _byte_offsets(text: str) -> np.ndarray:
    """int64[n + 1]: the byte offset of each character in the UTF-8, and of the end."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    width = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(width)])


def _listed(ids: Sequence[int]) -> list[int]:
    """The ids as a list of int, each within what a native engine takes."""
    listed = np.asarray(ids).tolist() if isinstance(ids, np.ndarray) else list(ids)
    for at, value in enumerate(listed):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise InputTypeError(f"ids[{at}] is {value!r} of type {type(value).__name__}; ids are integers")
        if not 0 <= value < _MAX_ID:
            raise InputError(f"ids[{at}] is {value}, which is no token: ids are 0 or more, and below 2**32")
    return [int(i) for i in listed]
