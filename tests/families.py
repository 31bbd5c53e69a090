"""Small tokenizers of the production families, for tests: a real vocabulary prefix inside production settings.

A family is what a production tokenizer.json puts around its vocabulary (pre-tokenizer, normalizer, post-processor,
added tokens, `ignore_merges`), kept in `data/pretokenizers.json`.  The vocabulary is the first 20,000 ranks of the
embedded o200k_base: real, many-lingual, and quick to load.  Everything is cached for the test process.
"""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

DATA = Path(__file__).parent / "data"
SIZE = 20_000
_CONFIG: dict[str, Any] = json.loads((DATA / "pretokenizers.json").read_text(encoding="utf-8"))
FAMILIES: tuple[str, ...] = tuple(_CONFIG["tokenizers"])
PATTERNS: dict[str, str] = _CONFIG["tiktoken"]


@functools.cache
def byte_alphabet() -> list[str]:
    """The 256 characters by which byte-level BPE writes bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(moved)) for b in range(256)]


def written(token: bytes) -> str:
    """A token as tokenizer.json writes it."""
    alphabet = byte_alphabet()
    return "".join([alphabet[b] for b in token])


@functools.cache
def ranks(size: int = SIZE, name: str = "o200k_base") -> tuple[bytes, ...]:
    """The first `size` tokens of an embedded vocabulary, by rank; all 256 single bytes are among them."""
    from toktier.embedded import load_ranks

    by_rank = sorted(load_ranks(name).items(), key=lambda item: item[1])
    return tuple(token for token, _ in by_rank[:size])


def _parts(token: bytes, rank: dict[bytes, int]) -> list[bytes]:
    """What merging by rank makes of a token's bytes with the tokens below it alone."""
    parts, own = [token[i : i + 1] for i in range(len(token))], rank[token]
    while len(parts) > 2:
        merged = [rank.get(a + b, own) for a, b in itertools.pairwise(parts)]
        best = min(merged)
        if best >= own:
            break
        i = merged.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


@functools.cache
def merges(size: int = SIZE, every_split: bool = False) -> tuple[tuple[bytes, bytes], ...]:
    """Merges in order of their product's rank.

    `every_split`: each pair of tokens that makes a token, as converters from rank files list them (Llama-3, gpt-oss);
    else the last merge of each token's own derivation, as a trainer writes them (GPT-2, Qwen).
    """
    tokens = ranks(size)
    rank = {token: i for i, token in enumerate(tokens)}
    found: list[tuple[bytes, bytes]] = []
    for token in tokens:
        if len(token) == 1:
            continue
        if every_split:
            halves = ((token[:i], token[i:]) for i in range(1, len(token)))
            pairs = [(a, b) for a, b in halves if a in rank and b in rank]
            found += sorted(pairs, key=lambda pair: (rank[pair[0]], rank[pair[1]]))
        elif len(parts := _parts(token, rank)) == 2:
            found.append((parts[0], parts[1]))
    return tuple(found)


def _renumbered(value: Any, ids: dict[str, int]) -> Any:
    """A post-processor with the ids of its special tokens moved to this vocabulary."""
    if isinstance(value, dict):
        if "tokens" in value and "ids" in value:
            return {**value, "ids": [ids[t] for t in value["tokens"]]}
        return {k: _renumbered(v, ids) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int):
            return [value[0], ids[value[0]]]
        return [_renumbered(v, ids) for v in value]
    return value


@functools.cache
def tokenizer_json(family: str, size: int = SIZE) -> str:
    """The text of a tokenizer.json of this family over the first `size` ranks; added tokens follow at `size`."""
    config = _CONFIG["tokenizers"][family]
    ids = {a["content"]: size + k for k, a in enumerate(config["added_tokens"])}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": ids[a["content"]], **a} for a in config["added_tokens"]],
            "normalizer": config["normalizer"],
            "pre_tokenizer": config["pre_tokenizer"],
            "post_processor": _renumbered(config["post_processor"], ids),
            "decoder": config["decoder"],
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": config["ignore_merges"],
                "vocab": {written(token): i for i, token in enumerate(ranks(size))},
                "merges": [[written(a), written(b)] for a, b in merges(size, config["ignore_merges"])],
            },
        },
        ensure_ascii=False,
    )


@functools.cache
def tokenizer(family: str, size: int = SIZE) -> tokenizers.Tokenizer:
    """The reference `tokenizers.Tokenizer` of a family.  Shared by all tests: do not change it."""
    import tokenizers

    return tokenizers.Tokenizer.from_str(tokenizer_json(family, size))


@functools.cache
def encoding(pattern: str, size: int = SIZE) -> tiktoken.Encoding:
    """A `tiktoken.Encoding` over the first `size` ranks with one of PATTERNS and two special tokens."""
    import tiktoken

    special = {"<|endoftext|>": size, "<|endofprompt|>": size + 7}
    tokens = {token: i for i, token in enumerate(ranks(size))}
    return tiktoken.Encoding(pattern, pat_str=PATTERNS[pattern], mergeable_ranks=tokens, special_tokens=special)


@functools.cache
def texts() -> dict[str, str]:
    """A few kilobytes of real text by language or kind, from `data/texts`."""
    return {f.stem: f.read_bytes().decode("utf-8") for f in sorted((DATA / "texts").glob("*.txt"))}
