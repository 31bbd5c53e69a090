"""A tokenizer as a repair needs it: ids and ends of a short text, byte counts, and where a text may be cut."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import pipeline, routing
from ..locks import MakingLock
from .cuts import CutRules
from .repair import Encoded

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

_LONG = 1 << 14  # characters of a text that is no mere change

_rules: weakref.WeakKeyDictionary[Any, CutRules] = weakref.WeakKeyDictionary()
_lock = MakingLock()


class TokenizerWindows:
    """The windows of one tokenizer and one way to read special tokens; engines choose themselves by the window's size.

    Attributes:
      rules: the cuts.  longest: bytes of the longest token.  digest: what a record is bound to.
      reason: why there are no repairs (then every change encodes the whole text), or "".
    """

    def __init__(self, tokenizer: Tokenizer, special_tokens: Any, engine: str, framed: bool) -> None:
        core, spec = tokenizer.core, tokenizer.spec
        self.mode = tokenizer._mode(special_tokens)
        self.digest = spec.digest
        self.reason = f"the reference runs this tokenizer: {core.reason}" if core.reason else ""
        if engine == "reference" and not self.reason:
            self.reason = "engine='reference' knows no places of tokens"
        if not self.reason and core.missing.values and core.tables.pretok.prefix_space:
            # the reference, which such a byte needs, would put a space in front of every window
            self.reason = "the vocabulary lacks bytes, and a space goes in front of a text"
        self.rules = _rules_of(tokenizer)
        if self.reason and self.rules.possible:
            self.rules = CutRules(None, (), "null")
        lengths = np.diff(spec.token_offsets)
        self.longest = max([int(lengths.max(initial=0)), *(len(a.content.encode()) for a in spec.added)])
        tokenizer._engine(engine, 0)  # refuses an engine that is not known
        self._tokenizer, self._engine = tokenizer, engine
        self._pipeline = None if self.reason else core.pipeline
        # is it settled that the host engine encodes short texts (`Tokenizer._placed` looks at each)?
        small = engine == "host" or (engine == "auto" and _LONG < routing.SMALL)
        self._quick = self._pipeline if small and not core.missing.values else None
        self.framed = framed
        self.frame = (np.zeros(0, np.int32), np.zeros(0, np.int32))
        if framed and not self.reason and core.frame is not None:  # the reference adds them itself
            self.frame = (core.frame.before, core.frame.after)
        self._plain = core.normalizer.kind == "none"
        # a measure is not the place to refuse a special token
        self._measured = "parse" if self.mode == "forbid" else self.mode

    def encode(self, text: str, continued: bool = False) -> Encoded:
        """Ids of `text`, as `Tokenizer.encode` gives them; `continued`: no space is put in front."""
        if self._quick is not None and len(text) <= _LONG:
            data = self._quick.untouched(text)
            if data and (found := self._tokenizer.core.host.encode_short(data)):
                return Encoded(found[0], found[1].cumsum(), len(data))
            prepared = self._quick.prepare((text,), self.mode, continued=continued)
            marked = len(prepared.marks.ids) and not len(prepared.spaces)
            if marked and (found := self._tokenizer.core.host.encode_short(prepared.buffer)):
                return Encoded(*pipeline.finish_lengths(prepared, *found))
            return Encoded(*pipeline.finish_placed(prepared, self._tokenizer._run("host", prepared, False)))
        if not self.reason:
            prepared, encoded, ran = self._tokenizer._placed(text, self.mode, self._engine, continued)
            if len(text) > _LONG and ran != "reference" and self._engine != "device":
                self._tokenizer.core.host.warmup()  # for the changes to come
            return Encoded(*pipeline.finish_placed(prepared, encoded))
        options: dict[str, Any] = {"special_tokens": self.mode, "add_special_tokens": self.framed}
        ids = self._tokenizer.encode(text, engine=self._engine, **options)
        n_bytes = self.measure(text)
        return Encoded(ids, np.full(len(ids), n_bytes, np.int64), n_bytes)

    def measure(self, text: str) -> int:
        """UTF-8 bytes of the normalized text."""
        if text.isascii():
            return len(text)
        if self._pipeline is None:
            return len(text.encode("utf-8", "surrogatepass"))
        if self._plain:
            return len(self._pipeline.utf8(text))
        return pipeline.normalized_bytes(self._pipeline.prepare((text,), self._measured))

    def token_bytes(self, ids: np.ndarray) -> list[bytes]:
        """The bytes of each token.

        Raises:
          InputError: an id that the tokenizer does not have, by position and value.
        """
        decoder = self._tokenizer.core.decoder
        return [decoder.decode_bytes(ids[i : i + 1]) for i in range(len(decoder.check(ids)))]


def windows(
    tokenizer: Tokenizer, special_tokens: Any = None, engine: str = "auto", add_special_tokens: bool = False
) -> TokenizerWindows:
    """The windows of a tokenizer; options as for `Tokenizer.encode`."""
    return TokenizerWindows(tokenizer, special_tokens, engine, bool(add_special_tokens))


def _rules_of(tokenizer: Tokenizer) -> CutRules:
    """The cuts of a tokenizer, made once for all that share its core."""
    core = tokenizer.core
    with _lock:
        rules = _rules.get(core)
        if rules is None:
            tables = None if core.reason else core.tables.pretok
            rules = _rules[core] = CutRules(tables, tokenizer.spec.added, tokenizer.spec.normalizer)
        return rules
