"""Which engine runs each part of a tokenizer, and why."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from toktier import routing

if TYPE_CHECKING:
    from toktier.core import Core


@dataclasses.dataclass(frozen=True)
class Part:
    """One step on the way from text to ids (or back), who does it, and why."""

    name: str
    runs_on: str
    why: str


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `Tokenizer.explain` returns; `str()` of it is meant to be read.

    Attributes:
      name, digest: of the spec.
      reference: package and version whose ids are the truth.
      engine: what `engine="auto"` takes for the text in question ("device or host, by size" without a text).
      reason: why the reference runs this tokenizer (or this text), or "".
      parts: the steps in order.
    """

    name: str
    digest: str
    reference: str
    engine: str
    reason: str
    parts: tuple[Part, ...]

    def __str__(self) -> str:
        width = max(len(p.name) for p in self.parts)
        lines = [f"{self.name} ({self.digest[:12]}): ids of {self.reference}, engine: {self.engine}"]
        if self.reason:
            lines.append(f"  runs on the reference: {self.reason}")
        lines += [f"  {p.name:<{width}}  {p.runs_on:<10} {p.why}" for p in self.parts]
        return "\n".join(lines)


def part_lines(parts: list[dict[str, str]]) -> list[str]:
    """The parts of a report, as `dataclasses.asdict` makes them, one a line in columns for a person."""
    width = max(len(part["name"]) for part in parts)
    lines = [f"    {part['name']:<{width}}  {part['runs_on']}: {part['why']}" for part in parts]
    return ["  which engine runs what, and why", *lines]


def explain(core: Core, size: int | None, lacking: str = "") -> Explanation:
    """The explanation for a text of `size` characters, by which `encode` chooses too, or for any text.

    `lacking`: why this text goes to the reference though the tokenizer does not (toktier/missing.py).
    """
    spec, reason = core.spec, core.reason or lacking
    version = f"{spec.reference} {spec.reference_version}"
    if reason:
        engine, parts = "reference", _on_reference(core, reason)
    elif size is not None and core.reference_is_quick(size, text=False):
        reason = f"tiktoken itself is the quickest for ids of up to {routing.TIKTOKEN} characters"
        engine, parts = "reference", _on_engines(core, "reference")
    else:
        engine = "device or host, by size" if size is None else routing.choose(size, core.device_started)
        parts = _on_engines(core, engine if size is not None else "by size")
    return Explanation(spec.name, spec.digest, version, engine, reason, parts)


def _on_engines(core: Core, engine: str) -> tuple[Part, ...]:
    spec, tables = core.spec, core.tables
    pretok, bpe = tables.pretok, tables.bpe
    states = f"{pretok.left_next.shape[0]} left and {pretok.right_next.shape[0]} right states"
    monoids = f"monoids of {len(pretok.left_product)} and {len(pretok.right_product)}"
    rule = "any two neighbours whose bytes are a token" if spec.merge_rule == "ranks" else "listed pairs"
    return (
        Part("added tokens", "host", f"{len(spec.added)} literals, cut out before anything else"),
        _normalizer(core),
        Part("pre-tokenizer", engine, f"{pretok.n_symbols} symbols, {states}, {monoids}"),
        Part("BPE", engine, f"{spec.n_ids} ids, {len(bpe.pairs)} merges of {rule}{_lacks(core)}"),
        *(() if engine in ("device", "reference") else (Part("host engine", "host", core.host.explain()),)),
        Part("post-processor", "host", _framing(core)),
        _decoder(core),
    )


def _on_reference(core: Core, reason: str) -> tuple[Part, ...]:
    return (Part("text to ids", "reference", reason), _decoder(core))


def _lacks(core: Core) -> str:
    missing = core.missing.values
    if not missing:
        return ""
    return (
        f"; {len(missing)} bytes are no token (such as 0x{missing[0]:02X}), and a text with one goes to the reference"
    )


def _normalizer(core: Core) -> Part:
    kind = core.normalizer.kind
    if kind == "none":
        return Part("normalizer", "none", "the text is taken as it is")
    if kind == "nfc":
        return Part("normalizer", "host", "NFC, by the reference on the few characters around a place where it may act")
    name = json.loads(core.spec.normalizer).get("type")
    return Part("normalizer", "reference", f"{name}, segment by segment; the rest runs on the engine")


def _framing(core: Core) -> str:
    frame = core.frame
    if frame is None or frame.empty:
        return "add_special_tokens=True adds nothing"
    return f"add_special_tokens=True puts {frame.before.tolist()} in front and {frame.after.tolist()} behind"


def _decoder(core: Core) -> Part:
    if core.decoder.byte_level:
        return Part("decoder", "host", "the bytes of the tokens, put together")
    return Part("decoder", "reference", "not a byte-level decoder")
