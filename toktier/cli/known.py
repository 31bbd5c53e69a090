"""Names of the pre-tokenizer families that people know, by their patterns.  For display only."""

from __future__ import annotations

import json
from typing import Any

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORDS = r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_GPT2 = "GPT-2"

_BY_PATTERN = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": _GPT2,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": _GPT2,
    _CL100K: "cl100k",
    _CONTRACTION + _WORDS + r"|\p{N}{1,3}" + _PUNCTUATION + _TAIL: "Llama-3",
    _CONTRACTION + _WORDS + r"|\p{N}" + _PUNCTUATION + _TAIL: "Qwen2",
    _CONTRACTION + _MARKED_WORDS + r"|\p{N}" + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL: "Qwen3.5",
    _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}{1,3}" + _SLASHED + _TAIL: "o200k",
    _CASED % ("", "") + r"|\p{N}" + _SLASHED + _TAIL: "Tekken",
}


def family(pretokenizer: str) -> str:
    """The family's name ("GPT-2", "Llama-3", ...), or the steps of a pre-tokenizer (canonical JSON) of another kind."""
    config = json.loads(pretokenizer)
    if config is None:
        return "no pre-tokenizer"
    steps = config["pretokenizers"] if config.get("type") == "Sequence" else [config]
    patterns = [_pattern(s) for s in steps if s.get("type") != "ByteLevel" or s.get("use_regex", True)]
    if len(patterns) == 1 and patterns[0] in _BY_PATTERN:
        return _BY_PATTERN[patterns[0]]
    if any(p.startswith(r"[\p{Han}]+|") for p in patterns):
        return "Kimi"
    if len(patterns) == 3 and patterns[0] == r"\p{N}{1,3}" and "\\p{P}\\p{S}" in patterns[2]:
        return "DeepSeek-V3"
    return ", ".join(str(s.get("type")) for s in steps)


def _pattern(step: dict[str, Any]) -> str:
    if step.get("type") == "ByteLevel":
        return next(p for p, name in _BY_PATTERN.items() if name == _GPT2)
    pattern = step.get("pattern", "")
    return str(pattern.get("Regex", "")) if isinstance(pattern, dict) else str(pattern)
