"""tiktoken: rank files, embedded vocabularies and rank tables, with a pattern and special tokens given beside them."""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from toktier import embedded
from toktier.errors import InputTypeError, SourceError
from toktier.reference import build_encoding
from toktier.sources import alphabet, stored
from toktier.sources.source import Source
from toktier.spec import MAX_IDS, AddedToken, Spec

ID_LIMIT = 1 << 24  # beyond any vocabulary; the tables by id would take more memory than the rest of the machine's work


def looks_like_ranks(content: bytes) -> bool:
    """Whether the content begins as a rank file does: base64, a blank, a number."""
    first = content[:4096].lstrip().split(b"\n", 1)[0].rstrip()
    return re.fullmatch(rb"[A-Za-z0-9+/]+={0,2} +[0-9]+", first) is not None


def read_file(path: Path, content: bytes, name: str, pattern: Any, special_tokens: Any) -> Source:
    """A rank file.

    Raises:
      SourceError: there is no pattern, a line is bad, or tiktoken refuses the pattern.
    """
    if pattern is None:
        raise SourceError(
            f"{path}: a rank file does not say how text is cut; pass pattern= (tiktoken's pat_str for this vocabulary) "
            'and, if there are any, special_tokens={"<|endoftext|>": 100257, ...}'
        )
    special = checked_options(pattern, special_tokens)
    at = stored.key("tiktoken", "ranks", content, pattern, json.dumps(special))
    return Source(stored.load_or_make(name, at, lambda: spec(name, parse(content, str(path)), pattern, special)))


def read_embedded(vocabulary: str, name: str | None = None) -> Source:
    """A vocabulary inside the package; errors as `toktier.embedded.tokens`."""
    known = embedded.describe(vocabulary)
    title = name or vocabulary

    def make() -> Spec:
        return spec(title, embedded.load_ranks(vocabulary), known.pattern, known.special_tokens)

    at = stored.key("tiktoken", "embedded", known.sha256, known.pattern, json.dumps(known.special_tokens))
    return Source(stored.load_or_make(title, at, make))


def checked_options(pattern: Any, special_tokens: Any) -> dict[str, int]:
    """The special tokens as a dict, once both options are what they must be.

    Raises:
      InputTypeError: an option of another type.
    """
    if not isinstance(pattern, str):
        raise InputTypeError(f"pattern must be a str (a regular expression), not {type(pattern).__name__}")
    if special_tokens is None:
        return {}
    if not isinstance(special_tokens, dict):
        raise InputTypeError(f"special_tokens must be a dict of str to int, not {type(special_tokens).__name__}")
    for token, value in special_tokens.items():
        if not isinstance(token, str) or isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise InputTypeError(f"special_tokens holds {token!r}: {value!r}; it must be a dict of str to int")
    return {token: int(value) for token, value in special_tokens.items()}


def parse(content: bytes, where: str) -> dict[bytes, int]:
    """Ranks by token, as written in a rank file.

    Raises:
      SourceError: a line that is no `base64 rank`, or that repeats a token or a rank; names the line.
    """
    ranks: dict[bytes, int] = {}
    decode = binascii.a2b_base64
    try:
        fields = content.split()
        tokens = [decode(token, strict_mode=True) for token in fields[::2]]
        numbers = list(map(int, fields[1::2]))
        ranks = dict(zip(tokens, numbers, strict=True))
        good = len(ranks) == len(numbers) == len(set(numbers)) and min(numbers, default=0) >= 0
    except ValueError:
        good = False
    lines = content.splitlines()
    good = good and len(ranks) == sum(map(bool, map(bytes.strip, lines)))
    if not good:
        _complain(lines, where)
    if not ranks:
        raise SourceError(f"{where}: holds no ranks; it may be a download that failed")
    return ranks


def _complain(lines: list[bytes], where: str) -> None:
    """Raises for the first bad line."""
    tokens: dict[bytes, int] = {}
    numbers: dict[int, int] = {}
    for k, line in enumerate(lines, 1):
        if not line.strip():
            continue
        shown = line[:60].decode("utf-8", "replace")
        try:
            token, number = line.split()
            pair = binascii.a2b_base64(token, strict_mode=True), int(number)
        except ValueError as e:
            raise SourceError(f"{where}: line {k} is no `base64 rank`: {shown!r} ({e}); download the file again") from e
        if pair[1] < 0:
            raise SourceError(f"{where}: line {k} has the negative rank {pair[1]}: {shown!r}; download the file again")
        for what, value, seen in (("token", pair[0], tokens), ("rank", pair[1], numbers)):
            if value in seen:  # type: ignore[operator]
                raise SourceError(f"{where}: line {k} repeats the {what} of line {seen[value]}: {shown!r}")  # type: ignore[index]
        tokens[pair[0]] = numbers[pair[1]] = k


def spec(
    name: str, ranks: dict[bytes, int], pattern: str, special_tokens: dict[str, int], default: str = "forbid"
) -> Spec:
    """The spec of a rank table.

    Raises:
      SourceError: ids that cannot be, or a pattern or special tokens that tiktoken refuses.
    """
    if "" in special_tokens:
        raise SourceError(f"{name}: special_tokens holds the empty string, on which tiktoken never ends; leave it out")
    ids = np.fromiter(ranks.values(), np.int64, len(ranks))
    biggest = max(int(ids.max(initial=-1)), *special_tokens.values(), -1)
    lowest = min(int(ids.min(initial=0)), *special_tokens.values(), 0)
    if lowest < 0 or biggest >= ID_LIMIT:
        raise SourceError(f"{name}: the id {lowest if lowest < 0 else biggest} is not within 0 to {ID_LIMIT - 1}")
    if len(np.unique(ids)) != len(ids):
        raise SourceError(f"{name}: two tokens have the same rank, which tiktoken refuses")
    # Only to see whether the pattern and the special tokens are good.
    build_encoding(
        name, pattern, {bytes([b]): b for b in range(256)}, {t: 256 + k for k, t in enumerate(special_tokens)}
    )
    tokens = list(ranks)
    blob, offsets = alphabet.by_id(tokens, ids, int(ids.max(initial=-1)) + 1)
    reason = ""
    if biggest >= MAX_IDS:
        reason = f"the id {biggest} is not below {MAX_IDS}"
    return Spec(
        name=name,
        reference="tiktoken",
        reference_version=stored.version("tiktoken"),
        token_blob=blob,
        token_offsets=offsets,
        merges=np.zeros((0, 3), np.int32),
        merge_rule="ranks",
        ignore_merges=True,
        pretokenizer=json.dumps({"type": "tiktoken", "pattern": pattern}, sort_keys=True),
        normalizer="null",
        post_processor="null",
        decoder="null",
        added=tuple(AddedToken(i, t) for t, i in special_tokens.items()),
        reason=reason,
        special_default=default,
        source_digest=hashlib.sha256(blob.tobytes()).hexdigest() if reason else "",
    )
