"""Symbols: the partition of all code points that a pre-tokenizer can see, probed out of the reference engine.

The engine's own Unicode tables decide (they are neither Python's nor `regex`'s), for all 1,112,064 code points.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from toktier.pretok.atoms import atoms, literals
from toktier.pretok.failure import LearnError
from toktier.pretok.form import GPT2_PATTERN

N_POINTS = 0x110000
_SURROGATES = slice(0xD800, 0xE000)
_PLAIN = "a1. \n\t'-_,;:!/"  # preferred representatives, then other ASCII, then the lowest code point


class Classes(NamedTuple):
    """`label: uint8 or uint16 [0x110000]`, one `representatives` character a label, `digest` of the labels."""

    label: np.ndarray
    representatives: str
    digest: str


def probe(form: Any, reference: str, progress: Any = None) -> Classes:
    """Partition all code points by what the parts of the normal form `form` can see.

    `progress` is called with one short text a probe.
    """
    say = progress or (lambda text: None)
    label = np.zeros(N_POINTS, np.int64)
    if reference == "tiktoken":
        for atom in atoms(form["pattern"]):
            say(f"class {atom}")
            label = refine(label, _tiktoken_members(atom))
        return _finish(label)
    behind_bytes = False
    for step in form or []:
        for name, members in _step_probes(step):
            say(f"class {name}")
            label = refine(label, _byte_view(members) if behind_bytes else members)
        behind_bytes |= step["type"] == "ByteLevel"
    return _finish(label)


def literal_texts(form: Any) -> list[str]:
    """Literal strings of two or more characters in the patterns of a normal form: texts worth trying."""
    if isinstance(form, dict):
        return literals(form["pattern"])
    found: list[str] = []
    for step in form or []:
        pattern = step.get("pattern", {}) if step["type"] == "Split" else {}
        found += [pattern["String"]] if "String" in pattern else literals(pattern.get("Regex", ""))
        found += literals(GPT2_PATTERN) if step["type"] == "ByteLevel" and step["use_regex"] else []
    return list(dict.fromkeys(found))


def refine(label: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Split the classes of `label` by the values of `by`."""
    both = label * (int(by.max()) + 1) + by
    present = np.bincount(both) > 0
    return (np.cumsum(present) - 1)[both]


def two_stage(label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`label[0x110000]` -> (block index [0x1100], symbol uint8[blocks * 256]), equal blocks stored once."""
    blocks, index = np.unique(label.reshape(-1, 256).astype(np.uint8), axis=0, return_inverse=True)
    return index.reshape(-1).astype(np.uint8 if len(blocks) <= 256 else np.uint16), blocks.reshape(-1)


def one_stage(block: np.ndarray, symbol: np.ndarray) -> np.ndarray:
    """The inverse of `two_stage`."""
    return symbol.reshape(-1, 256)[block].reshape(-1)


def _finish(label: np.ndarray) -> Classes:
    label = label.copy()
    label[_SURROGATES] = label[0xFFFD]  # no text holds one
    plain = list(dict.fromkeys([*map(ord, _PLAIN), *range(33, 127), *range(0xD800), *range(0xE000, N_POINTS)]))
    by_rank = np.array(plain)
    _, first = np.unique(label[by_rank].astype(np.uint16), return_index=True)
    chosen = by_rank[np.sort(first)]
    if len(chosen) > 254:
        raise LearnError(f"pretokenizer: {len(chosen)} character classes, more than 254")
    number = np.zeros(int(label.max()) + 1, np.int64)
    number[label[chosen]] = np.arange(len(chosen))
    label = number[label]
    digest = hashlib.sha256(label.astype(np.uint8).tobytes()).hexdigest()
    return Classes(label.astype(np.uint8), "".join(map(chr, chosen)), digest)


def _all_points() -> np.ndarray:
    points = np.arange(N_POINTS, dtype=np.uint32)
    return points[(points < 0xD800) | (points >= 0xE000)]


def _members(found: str, inverted: bool) -> np.ndarray:
    out = np.full(N_POINTS, inverted)
    out[np.frombuffer(found.encode("utf-32-le"), np.uint32)] = not inverted
    return out


def _tiktoken_members(atom: str) -> np.ndarray:
    import tiktoken

    try:
        engine = tiktoken.Encoding(
            "atom", pat_str=atom, mergeable_ranks={bytes([b]): b for b in range(256)}, special_tokens={}
        )
    except Exception as error:
        raise LearnError(f"pattern: `tiktoken` refuses the atom {atom!r}: {error}") from error
    text = _all_points().tobytes().decode("utf-32-le")
    return _members(engine.encode_to_numpy(text).astype(np.uint8).tobytes().decode(), False)


def _tokenizers_members(atom: str) -> np.ndarray:
    from tokenizers import Regex, normalizers

    try:
        remove = normalizers.Replace(Regex(atom), "")
    except Exception as error:
        raise LearnError(f"pattern: `tokenizers` refuses the atom {atom!r}: {error}") from error
    points = _all_points()
    left = [
        remove.normalize_str(points[at : at + 4096].tobytes().decode("utf-32-le")) for at in range(0, len(points), 4096)
    ]
    out = _members("".join(left), True)
    out[_SURROGATES] = False
    return out


def _step_probes(step: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
    """What one pre-tokenizer of `tokenizers` can see of a single character: (name, values[0x110000])."""
    kind = step["type"]
    if kind == "Split":
        pattern = step["pattern"]
        if "String" in pattern:
            return [(f"{c!r}", _members(c, False)) for c in dict.fromkeys(pattern["String"])]
        return [(atom, _tokenizers_members(atom)) for atom in atoms(pattern["Regex"])]
    if kind == "ByteLevel":
        return [(a, _tokenizers_members(a)) for a in atoms(GPT2_PATTERN)] if step["use_regex"] else []
    if kind == "CharDelimiterSplit":
        return [(step["delimiter"], _members(step["delimiter"], False))]
    if kind == "FixedLength":
        return []
    return [(kind, _between_letters(step))]  # a predicate of single characters


def _between_letters(step: dict[str, Any]) -> np.ndarray:
    """0 joined with letters, 1 a piece of its own, 2 removed: each character asked between two letters."""
    import json

    import tokenizers

    alone = dict(step)
    if step["type"] == "Digits":
        alone["individual_digits"] = True
    if step["type"] == "Punctuation":
        alone["behavior"] = "Isolated"
    config = {"version": "1.0", "pre_tokenizer": alone, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    split = tokenizers.Tokenizer.from_str(json.dumps(config)).pre_tokenizer.pre_tokenize_str
    out = np.zeros(N_POINTS, np.int64)
    points = _all_points()
    for at in range(0, len(points), 4096):
        part = points[at : at + 4096]
        text = np.full(2 * len(part) + 1, ord("a"), np.uint32)
        text[1::2] = part
        spans = np.array([span for _, span in split(text.tobytes().decode("utf-32-le"))], np.int64)
        start, end = spans.T
        edge = np.zeros(len(text) + 1, np.int64)
        edge[start[end - start > 1]] += 1
        edge[end[end - start > 1]] -= 1
        cut = np.where(np.cumsum(edge[:-1]) > 0, 0, 2)
        cut[start[end - start == 1]] = 1
        out[part] = cut[1::2]
    for letter in b"aA":  # an ASCII letter beside letters: joined, as between any others
        out[letter] = 0
    return out


def byte_alphabet() -> str:
    """The 256 characters that ByteLevel writes for bytes, by byte."""
    kept = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return "".join(chr(b) if b in set(kept) else chr(next(others)) for b in range(256))


def _byte_view(members: np.ndarray) -> np.ndarray:
    """What a probe sees of each code point once ByteLevel has written its bytes as characters."""
    by_byte = members[[ord(c) for c in byte_alphabet()]].astype(np.int64) + 1
    base = int(by_byte.max()) + 1
    c = np.arange(N_POINTS, dtype=np.int64)
    one, two, three = c < 0x80, c < 0x800, c < 0x10000
    lead = np.select([one, two, three], [c, 0xC0 | c >> 6, 0xE0 | c >> 12], 0xF0 | c >> 18)
    view = by_byte[lead]
    for shift, short in ((12, three), (6, two), (0, one)):
        more = by_byte[0x80 | c >> shift & 0x3F]
        view = view * base + np.where(short, 0, more)
    return np.unique(view, return_inverse=True)[1].reshape(-1)
