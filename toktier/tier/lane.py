"""One tokenizer of a tier: which engine a text goes to, and what the answer says about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import chunks, pipeline, routing
from ..encoded import Encoded
from ..errors import EngineError
from ..session.repair import Encoded as WindowEncoded
from ..session.window import TokenizerWindows
from .work import Work, current

if TYPE_CHECKING:
    from ..added import Mode
    from ..pipeline import Prepared
    from ..tokenizer import Tokenizer
    from .launcher import Launcher
    from .pace import Pace
    from .thresholds import Limits

_PART = 1 << 14  # bytes the host encodes at a time, so that a long text does not keep the interpreter for itself
_ASIDE = 1 << 13  # characters from which on the reference must not keep the interpreter for itself


class Lane:
    """A tokenizer's way through the tier, shared by all names that have the same spec; safe from any thread.

    Attributes:
      tokenizer: the Tokenizer.
      quarantined: why the reference alone may serve it, or "".
    """

    def __init__(self, tokenizer: Tokenizer, limits: Limits, launcher: Launcher, pace: Pace) -> None:
        self.tokenizer = tokenizer
        self.core = tokenizer.core
        self.quarantined = ""
        self._unsupported = self.core.reason
        self._limits, self._launcher, self._pace = limits, launcher, pace
        self._pipeline = None if self._unsupported else self.core.pipeline

    @property
    def reason(self) -> str:
        """Why the reference serves every text, or ""."""
        return self._unsupported or self.quarantined

    def encode(self, text: str, mode: Mode, framed: bool, work: Work) -> tuple[np.ndarray, int]:
        """(ids int32[k], bytes of the text); what was done is noted in `work`.

        Raises:
          as `Tokenizer.encode`; as `Launcher.encode`.
        """
        if self.reason:
            return self._on_reference(text, mode, framed, self.reason, work)
        assert self._pipeline is not None
        prepared = self._pipeline.prepare((text,), mode)
        at = self.core.missing.find(prepared.buffer)
        if at >= 0:
            return self._on_reference(text, mode, framed, self.core.missing.why(prepared, at), work)
        size = pipeline.normalized_bytes(prepared)
        ids = pipeline.finish(prepared, self._on_engine(prepared, size, work))
        return self.core.frame.around(ids) if framed and self.core.frame is not None else ids, size

    def spans(self, text: str, mode: Mode, continued: bool, work: Work) -> WindowEncoded:
        """Ids and ends of a session's window; as `Tokenizer.encode_spans`."""
        steps = self._pipeline
        assert steps is not None
        prepared = steps.prepare((text,), mode, continued=continued)
        size = pipeline.normalized_bytes(prepared)
        at = self.core.missing.find(prepared.buffer)
        if at >= 0:
            if continued and steps.prefix_space:
                raise EngineError("the reference, which this text needs, puts a space in front of it")
            work.note("reference", self.core.missing.why(prepared, at), size)
            encoded = self.core.missing.placed(prepared, self.core.reference.encode(text, mode, False))
        else:
            encoded = self._on_engine(prepared, size, work)
        return WindowEncoded(pipeline.finish(prepared, encoded), pipeline.finish_ends(prepared, encoded), size)

    def warmup(self, sizes: Sequence[int] | None) -> None:
        """Make all that requests need."""
        self.tokenizer.warmup(sizes)

    # -- the router ------------------------------------------------------------------------------------------------

    def _on_reference(self, text: str, mode: Mode, framed: bool, why: str, work: Work) -> tuple[np.ndarray, int]:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        work.note("reference", why, size)
        reference = self.core.reference
        encode = reference.encode if len(text) < _ASIDE else reference.encode_aside
        return encode(text, mode, framed), size

    def _on_engine(self, prepared: Prepared, size: int, work: Work) -> Encoded:
        """The device where it pays, else the host."""
        buffer = prepared.buffer
        if not len(buffer):
            work.note("host", "no text to tokenize", size)
            return Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64))
        started = self.core.device_started
        if started and not self._limits.resolved:
            self._limits.resolve(self.core, measure=False)
        limits = self._limits.now
        small = size < limits.device
        why = ""
        if limits.device >= routing.NEVER:
            why = f"{size} bytes, and there is no accelerator: the host is quicker at every size"
        elif small:
            why = f"{size} bytes are fewer than the {limits.device} for which a device is thought of"
        if started and size >= limits.join:
            made = self._launcher.encode(self.core.device, buffer, work, join=small)
            if not isinstance(made, str):
                rule = "joined a launch that was being gathered" if small else f"from {limits.device} on"
                work.note("device", f"{size} bytes: {rule}", size)
                return made
            why = made or why
        encoded = self._on_host(buffer, work)
        work.note("host", why or f"{size} bytes, but the device program is not loaded: Tier.warmup() does that", size)
        return encoded

    def _on_host(self, buffer: np.ndarray, work: Work) -> Encoded:
        host = self.core.host
        if len(buffer) <= 2 * _PART:
            return host.encode_buffer(buffer)
        ids, ends = [], []
        with self._pace as pace:
            for start, stop in chunks.plan(self.core.tables.pretok, buffer, _PART):
                work.left()
                began = time.perf_counter()
                part = host.encode_buffer(buffer[start:stop])
                ids.append(part.ids)
                ends.append(part.ends + np.int64(start))
                pace.give_way(time.perf_counter() - began)
        return Encoded(np.concatenate(ids), np.concatenate(ends))


class LaneWindows(TokenizerWindows):
    """The windows of the sessions of a lane: what `Session` asks for tokens.

    Args:
      lane: whose.
      special_tokens, framed: as for a session.
      reference: whether the reference encodes every text.
    """

    def __init__(self, lane: Lane, special_tokens: Any, framed: bool, reference: bool) -> None:
        super().__init__(lane.tokenizer, special_tokens, "reference" if reference else "auto", framed)
        self._lane = lane

    def encode(self, text: str, continued: bool = False) -> WindowEncoded:
        """Ids of `text`; what was done is noted in the work of this thread."""
        work = current.work or Work()
        if not self.reason:
            return self._lane.spans(text, self.mode, continued, work)
        ids, _ = self._lane.encode(text, self.mode, self.framed, work)
        n_bytes = self.measure(text)
        return WindowEncoded(ids, np.full(len(ids), n_bytes, np.int64), n_bytes)
