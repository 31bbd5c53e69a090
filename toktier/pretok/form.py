"""The normal form of a pre-tokenizer: equal splitters get equal JSON, and so one stored table."""

from __future__ import annotations

import json
from typing import Any

from toktier.pretok.failure import LearnError

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # ByteLevel(use_regex)
SUPPORTED = (
    "Split", "ByteLevel", "Digits", "Punctuation", "WhitespaceSplit", "Whitespace", "CharDelimiterSplit",
    "BertPreTokenizer", "FixedLength",
)  # fmt: skip


def parse(pretokenizer: str) -> tuple[Any, bool]:
    """`Spec.pretokenizer` -> (normal form, prefix space).

    The form is None (one piece), {"type": "tiktoken", "pattern": ...}, or a list of the reference's pre-tokenizers
    applied one after the other, without what changes no piece: nesting, `trim_offsets`, a last ByteLevel without
    regex.  `add_prefix_space` of a first ByteLevel becomes the second value; elsewhere it raises `LearnError`.
    """
    value = json.loads(pretokenizer)
    if value is None:
        return None, False
    if value["type"] == "tiktoken":
        return {"type": "tiktoken", "pattern": value["pattern"]}, False
    parts = _flat(value)
    prefix_space = False
    steps = []
    for number, part in enumerate(parts):
        kind = part.get("type")
        if kind not in SUPPORTED:
            raise LearnError(f"pretokenizer: {kind} changes the text or is unknown; it cannot become a table")
        step = {k: v for k, v in part.items() if k != "trim_offsets"}
        if kind == "ByteLevel":
            if step.pop("add_prefix_space", True):
                if number:
                    raise LearnError(
                        "pretokenizer: add_prefix_space behind another splitter puts a space in each piece"
                    )
                prefix_space = True
            step["add_prefix_space"], step["trim_offsets"] = False, True
            step.setdefault("use_regex", True)
        steps.append(step)
    while steps and steps[-1]["type"] == "ByteLevel" and not steps[-1]["use_regex"]:
        steps.pop()
    if sum(s["type"] == "ByteLevel" for s in steps) > 1:
        raise LearnError("pretokenizer: two ByteLevel steps map bytes twice")
    return steps or None, prefix_space


def canonical(form: Any) -> str:
    """The one JSON text of a normal form."""
    return json.dumps(form, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def reference_json(form: Any) -> Any:
    """The pre-tokenizer object that the reference runs for a normal form of its own (None where there is none)."""
    if form is None or len(form) == 1:
        return form and form[0]
    return {"type": "Sequence", "pretokenizers": form}


def _flat(part: dict[str, Any]) -> list[dict[str, Any]]:
    if part.get("type") == "Sequence":
        return [step for inner in part["pretokenizers"] for step in _flat(inner)]
    return [part]
