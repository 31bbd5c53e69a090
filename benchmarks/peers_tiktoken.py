"""tiktoken on the vocabulary of a tokenizer.json: a fast peer where its merge rule happens to give the same ids."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

    from toktier.tokenizer import Tokenizer

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def single_pattern(pretokenizer: str) -> str | None:
    """The one regex that a pre-tokenizer splits by, None where there are several or another kind of split."""
    config = json.loads(pretokenizer)
    if not config:
        return None
    steps = config["pretokenizers"] if config["type"] == "Sequence" else [config]
    splits = [s for s in steps if s["type"] != "ByteLevel"]
    if any(s.get("use_regex", True) for s in steps if s["type"] == "ByteLevel"):
        return None if splits else GPT2
    if len(splits) != 1 or splits[0]["type"] != "Split" or splits[0]["behavior"] not in ("Isolated", "Removed"):
        return None
    return splits[0]["pattern"].get("Regex")


def tiktoken_twin(tok: Tokenizer) -> tiktoken.Encoding | None:
    """A tiktoken encoding over the tokenizer's vocabulary, None where its pre-tokenizer is not one regex.

    For a rank file tiktoken is the reference already, so there is no twin.  The merge rules differ, so the caller must
    compare ids.
    """
    import tiktoken

    spec = tok.spec
    pattern = single_pattern(spec.pretokenizer) if spec.reference == "tokenizers" and not spec.reason else None
    if pattern is None:
        return None
    ranks = {token: i for i in range(spec.n_ids) if (token := spec.token_bytes(i))}
    if any(bytes([b]) not in ranks for b in range(256)):
        return None
    return tiktoken.Encoding("twin", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
