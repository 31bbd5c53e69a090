"""Mistral's tekken.json: a rank table whose ids come behind a block of special ids.

As mistral_common reads it: the first `default_vocab_size - default_num_special_tokens` entries of `vocab` are the ranks
(the file lists more); an id is a rank plus `default_num_special_tokens`; the ids below are special tokens, named in the
file (`special_tokens`), or by a fixed list for older files, the rest `<SPECIAL_n>`.  The model is tiktoken's.  In a
text, special tokens are plain text unless the caller asks for them.
"""

from __future__ import annotations

import binascii
from typing import Any

from toktier.errors import SourceError
from toktier.sources import ranks, stored
from toktier.spec import Spec

# Special tokens of files that name none (versions up to v7), from id 0 on.
_UNNAMED = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


def looks_like_tekken(value: Any) -> bool:
    """Whether this JSON is a tekken.json."""
    return isinstance(value, dict) and isinstance(value.get("vocab"), list) and isinstance(value.get("config"), dict)


def key(content: bytes) -> str:
    """Where the spec of this file is kept."""
    return stored.key("tiktoken", "tekken", content)


def spec(value: dict[str, Any], where: str, name: str) -> Spec:
    """The spec of a parsed tekken.json.

    Raises:
      SourceError: a field that is missing or contradicts another; names it.
    """
    config = value["config"]
    for field, kind in (("pattern", str), ("default_vocab_size", int), ("default_num_special_tokens", int)):
        if not isinstance(config.get(field), kind):
            raise SourceError(f"{where}: config.{field} is {config.get(field)!r}, not of type {kind.__name__}")
    first, vocab = config["default_num_special_tokens"], value["vocab"]
    count = config["default_vocab_size"] - first
    if first < 0 or not 0 < count <= len(vocab):
        raise SourceError(
            f"{where}: config.default_vocab_size {config['default_vocab_size']} less config.default_num_special_tokens "
            f"{first} is not within 1 to the {len(vocab)} entries of vocab"
        )
    table: dict[bytes, int] = {}
    for k, entry in enumerate(vocab[:count]):
        try:
            token = binascii.a2b_base64(entry["token_bytes"], strict_mode=True)
            rank = entry["rank"]
        except (TypeError, KeyError, ValueError) as e:
            raise SourceError(f"{where}: vocab[{k}] is no {{'rank', 'token_bytes' in base64}}: {entry!r:.80}") from e
        if rank != k or token in table:
            raise SourceError(f"{where}: vocab[{k}] has the rank {rank!r}, or repeats a token: {entry!r:.80}")
        table[token] = first + k
    return ranks.spec(name, table, config["pattern"], _special(value, where, first), default="text")


def _special(value: dict[str, Any], where: str, count: int) -> dict[str, int]:
    """Ids of the special tokens."""
    named = value.get("special_tokens")
    if named is None:
        tokens = dict(zip(_UNNAMED[:count], range(count), strict=False))
    else:
        try:
            tokens = {entry["token_str"]: int(entry["rank"]) for entry in named}
        except (TypeError, KeyError, ValueError) as e:
            raise SourceError(f"{where}: special_tokens is no list of {{'rank', 'token_str'}}") from e
        if len(set(tokens.values())) != len(named) or not set(tokens.values()) <= set(range(count)):
            raise SourceError(
                f"{where}: special_tokens repeats a token or a rank, or has a rank outside 0 to {count - 1}"
            )
    taken = set(tokens.values())
    return tokens | {f"<SPECIAL_{i}>": i for i in range(count) if i not in taken}
