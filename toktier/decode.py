"""From ids back to bytes and text, as the reference does it.

tiktoken and the reference's byte-level decoder put the bytes of all tokens together and decode them once, with U+FFFD
for what is not UTF-8.  Every other decoder is the reference's own.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from toktier.errors import InputError, InputTypeError
from toktier.normalize import Normalizer
from toktier.spec import AddedToken, Spec

# A model's output layer is padded beyond its vocabulary (gpt-oss by 1,069 of 200,019 ids, Phi-2 by 905 of 50,295), so
# a model may give such an id; the reference decodes it to nothing.  An id farther out is a mistake, and is refused.
PADDED_SHARE = 32

ReferenceDecode = Callable[[list[int], bool], str]


class Decoder:
    """Decodes ids of one spec.  Immutable and safe from any thread.

    Args:
      spec: the tokenizer.
      normalizer: its normalizer; the reference decodes an added token with `normalized=True` to its normalized form.
      reference: `decode(ids, skip_special_tokens)` of the reference, for decoders that are not byte-level.

    Attributes:
      byte_level: whether tokens are just bytes (else the reference decodes).
      size: one more than the largest id of the vocabulary, added tokens included.
    """

    def __init__(self, spec: Spec, normalizer: Normalizer, reference: ReferenceDecode) -> None:
        self.byte_level = spec.reference == "tiktoken" or _is_byte_level(json.loads(spec.decoder))
        self.size = max([spec.n_ids, *(t.id + 1 for t in spec.added)])
        self._reference = reference
        self._strict = spec.reference == "tiktoken"
        self._limit = self.size if self._strict else self.size + self.size // PADDED_SHARE
        self._special = np.zeros(self._limit, bool)
        written = _written(spec, normalizer)
        contents = {t.content.encode() for t in spec.added if t.special}
        for token in spec.added:
            # As in the reference, it is the token's written form that is looked up among the special tokens.
            self._special[token.id] = written[token.id] in contents
        as_they_are = {token: text.encode() for token, text in spec.unwritten}
        self._blob, self._offsets = _table(spec, as_they_are | written, self._limit)

    def decode_bytes(self, ids: Any, *, skip_special_tokens: bool = False) -> bytes:
        """The bytes of the ids (for a decoder that is not byte-level: its text in UTF-8)."""
        checked = self.check(ids)
        if not self.byte_level:
            return self._reference(checked.tolist(), skip_special_tokens).encode()
        return self._bytes(checked, skip_special_tokens)

    def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
        """The text of the ids; bytes that are not UTF-8 become U+FFFD."""
        checked = self.check(ids)
        if not self.byte_level:
            return self._reference(checked.tolist(), skip_special_tokens)
        return self._bytes(checked, skip_special_tokens).decode("utf-8", "replace")

    def check(self, ids: Any) -> np.ndarray:
        """The ids as int64[n].

        Raises:
          InputTypeError: `ids` is no sequence of integers.
          InputError: an id is negative or unknown.
        """
        array = _integers(ids)
        bad = (array < 0) | (array >= self._limit)
        if self._strict and not bad.any() and array.size:
            bad = self._offsets[array] == self._offsets[array + 1]
        if bad.any():
            at = int(np.argmax(bad))
            raise InputError(f"ids[{at}] is {array[at]}, which is no token: {self._known(array[at])}")
        return array.astype(np.int64, copy=False)

    def no_token(self, token: Any) -> InputError | InputTypeError:
        """The error for a single id, the argument `token`, that `check` refuses."""
        if isinstance(token, (bool, np.bool_)) or not isinstance(token, (int, np.integer)):
            return InputTypeError(f"token must be an int, not {type(token).__name__}: it is one id")
        return InputError(f"token={token} is no token: {self._known(token)}")

    def _known(self, token: Any) -> str:
        gaps = " with gaps" if 0 <= token < self.size else ""
        return f"this vocabulary has the ids 0 to {self.size - 1}{gaps}"

    def _bytes(self, ids: np.ndarray, skip_special_tokens: bool) -> bytes:
        if skip_special_tokens:
            ids = ids[~self._special[ids]]
        starts, stops = self._offsets[ids], self._offsets[ids + 1]
        if len(ids) < 256:
            blob = self._blob
            return b"".join([blob[a:b].tobytes() for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
        lengths = stops - starts
        ends = np.cumsum(lengths)
        gather = np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)
        return self._blob[gather].tobytes()


class StreamDecoder:
    """Text of ids that come one by one.  It never splits a character, and the parts add up to the whole text.

    >>> import toktier
    >>> tok = toktier.load("o200k_base")
    >>> stream = tok.decoder()
    >>> [stream.push(i) for i in tok.encode("é 🫠").tolist()] + [stream.flush()]
    ['é', ' ', '', '🫠', '']
    """

    def __init__(self, decoder: Decoder, skip_special_tokens: bool = False) -> None:
        self._decoder = decoder
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._given = 0

    def push(self, token: int) -> str:
        """The text that this id completes; "" while a character is incomplete.

        Raises:
          InputError, InputTypeError: as `Tokenizer.token_bytes`; the state stays as it was.
        """
        try:
            if self._decoder.byte_level:
                return self._utf8.decode(self._decoder.decode_bytes([token], skip_special_tokens=self._skip))
            self._decoder.check([token])
        except (InputError, InputTypeError):
            raise self._decoder.no_token(token) from None
        self._ids.append(int(token))
        return self._whole(held_back="\ufffd")

    def flush(self) -> str:
        """What was held back, with U+FFFD for an incomplete character; the decoder then starts afresh."""
        if self._decoder.byte_level:
            rest = self._utf8.decode(b"", final=True)
            self._utf8.reset()
            return rest
        rest = self._whole(held_back="")
        self._ids, self._given = [], 0
        return rest

    def _whole(self, held_back: str) -> str:
        """The reference decodes all ids again, since decoders may look at neighbours; what is new is given."""
        text = self._decoder.decode(self._ids, skip_special_tokens=self._skip)
        new = (text.rstrip(held_back) if held_back else text)[self._given :]
        self._given += len(new)
        return new


def byte_of_char() -> dict[str, int]:
    """The byte that each of the 256 characters of byte-level BPE stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + k): b for k, b in enumerate(others)}


def _is_byte_level(decoder: Any) -> bool:
    if decoder is None:
        return False
    if decoder["type"] == "Sequence":
        return len(decoder["decoders"]) == 1 and _is_byte_level(decoder["decoders"][0])
    return decoder["type"] == "ByteLevel"


def _written(spec: Spec, normalizer: Normalizer) -> dict[int, bytes]:
    """What each added token is written as, by id."""
    forms = {t.id: t.content for t in spec.added}
    if spec.reference == "tokenizers" and normalizer.kind != "none":
        changed = [t for t in spec.added if t.normalized and normalizer.text(t.content) != t.content]
        forms |= _reference_forms(changed, normalizer)
    return {k: v.encode() for k, v in forms.items()}


def _reference_forms(tokens: list[AddedToken], normalizer: Normalizer) -> dict[int, str]:
    """How the reference writes added tokens that its normalizer changes; releases differ, so it is asked."""
    if not tokens:
        return {}
    import tokenizers

    shell = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={}, merges=[]))
    parts = json.loads(shell.to_str())
    parts["normalizer"] = json.loads(normalizer.description)
    shell = tokenizers.Tokenizer.from_str(json.dumps(parts))
    shell.add_tokens([tokenizers.AddedToken(t.content, normalized=True) for t in tokens])
    ids = {t.id: shell.token_to_id(t.content) for t in tokens}
    return {k: shell.id_to_token(i) or "" for k, i in ids.items() if i is not None}


def _table(spec: Spec, written: dict[int, bytes], limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of every id: (blob uint8[*], offsets int64[limit + 1])."""
    chars = byte_of_char()
    lengths = np.zeros(limit, np.int64)
    lengths[: spec.n_ids] = np.diff(spec.token_offsets)
    added: dict[int, bytes] = {}
    for token, form in sorted(written.items()):
        text = form.decode()
        # The byte-level decoder reads characters of its alphabet as bytes, in added tokens too.
        as_bytes = spec.reference == "tokenizers" and all(c in chars for c in text)
        added[token] = bytes([chars[c] for c in text]) if as_bytes else form
        lengths[token] = len(added[token])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    blob = np.zeros(offsets[-1], np.uint8)
    done = 0  # model tokens below this id are in place
    for token in [*added, spec.n_ids]:
        stop = min(token, spec.n_ids)
        if done < stop:
            source = spec.token_blob[spec.token_offsets[done] : spec.token_offsets[stop]]
            blob[offsets[done] : offsets[done] + len(source)] = source
        if token in added:
            blob[offsets[token] : offsets[token + 1]] = np.frombuffer(added[token], np.uint8)
        done = max(done, token + 1)
    return blob, offsets


def _integers(ids: Any) -> np.ndarray:
    """A one-dimensional integer array of the ids, without any silent conversion."""
    if isinstance(ids, (str, bytes, bytearray, int, float)) or ids is None:
        raise InputTypeError(f"ids must be a sequence of integers, not {type(ids).__name__}; one id goes in a list")
    if hasattr(ids, "__array__"):
        array = np.asarray(ids)
        if array.ndim != 1:
            raise InputTypeError(f"ids must be one-dimensional, not of shape {array.shape}; decode row by row")
        if array.size == 0:
            return np.zeros(0, np.int64)
        if array.dtype.kind not in "iu":
            raise InputTypeError(f"ids must be an array of integers, not of {array.dtype}")
        return array
    try:
        values: Sequence[Any] = list(ids)
    except TypeError as e:
        raise InputTypeError(f"ids must be a sequence of integers, not {type(ids).__name__}") from e
    if not set(map(type, values)) <= {int}:
        for at, value in enumerate(values):
            if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
                raise InputTypeError(f"ids[{at}] is {value!r} of type {type(value).__name__}; ids are integers")
    try:
        return np.array(values, np.int64)
    except OverflowError as e:
        at = next(k for k, v in enumerate(values) if not -(1 << 63) <= int(v) < 1 << 63)
        raise InputError(f"ids[{at}] is {values[at]}, which is no token: ids are below 2**31") from e
