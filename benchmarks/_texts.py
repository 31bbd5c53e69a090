"""Texts that are the same on every machine, and the digests of the ids that the reference gives for them.

The texts are drawn by Python's own generator from the embedded vocabulary and from `tests/data/texts`, so that
exactness can be checked where no corpus, no network and no time for the reference is.  `benchmarks/gpu.py
--write-digests` makes `data/digests.json` anew.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
DIGESTS = Path(__file__).parent / "data" / "digests.json"
FAMILIES = ("gpt2", "llama3", "qwen3", "deepseek_v3", "gptoss")
EMBEDDED = ("o200k_base", "cl100k_base")

_SCRIPTS = {
    "latin": (0x41, 0x24F),
    "cyrillic": (0x400, 0x4FF),
    "arabic": (0x600, 0x6FF),
    "devanagari": (0x900, 0x97F),
    "thai": (0xE00, 0xE7F),
    "japanese": (0x3040, 0x30FF),
    "chinese": (0x4E00, 0x9FFF),
    "korean": (0xAC00, 0xD7A3),
}
_UNSPACED = ("thai", "japanese", "chinese")
_MARKS = ["", "", "", "", "", "", ",", ".", ".\n", "\n\n", "!", " 2024", " 1,234.5", "'s", ' "', "  "]


@functools.cache
def _words(script: str) -> list[str]:
    """Tokens of the embedded vocabulary written in one script, in order of their rank."""
    from toktier.embedded import load_ranks

    first, last = _SCRIPTS[script]
    found = []
    for token, _ in sorted(load_ranks("o200k_base").items(), key=lambda item: item[1]):
        word = token.decode("utf-8", "ignore").strip()
        if word and all(first <= ord(c) <= last for c in word) and len(word.encode()) >= min(3, len(token)):
            found.append(word)
    return found


def prose(script: str, size: int, seed: int = 0) -> str:
    """About `size` bytes of words of a script, frequent ones more often, with punctuation, numbers and line ends."""
    rng, words = random.Random(f"{script} {seed}"), _words(script)
    blank = "" if script in _UNSPACED else " "
    parts, total = [], 0
    while total < size:
        # the k-th word comes with a probability of about 1 / k
        word = words[min(int(len(words) ** rng.random()), len(words) - 1)] + rng.choice(_MARKS) + blank
        parts.append(word)
        total += len(word.encode())
    return "".join(parts)


def hard(size: int) -> str:
    """About `size` bytes of what goes wrong most easily: any code point, long runs, digits, blanks, base64, marks."""
    rng = random.Random("hard")
    parts, total = [], 0
    while total < size:
        kind = rng.randrange(6)
        if kind == 0:
            part = "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(20)) if not 0xD800 <= c < 0xE000)
        elif kind == 1:
            part = rng.choice(" \n\t\r\u00a0\u3000a=-0\u4e00\u0301\U0001f600") * rng.randint(1, 400)
        elif kind == 2:
            part = "".join(rng.choices("0123456789\u0663\u06f4.,", k=rng.randint(1, 60)))
        elif kind == 3:
            part = "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=300))
        elif kind == 4:
            part = "".join(
                rng.choices(["'s", "'LL", "don't", "\u017f", "i\u0307", "e\u0301\u0323", " \n", "ſ", "—"], k=30)
            )
        else:
            part = "".join(rng.choices("{}[]()<>;:=+-*/&|^%$#@!?,.\\\"' \n\tabcxyz", k=200))
        parts.append(part)
        total += len(part.encode())
    return "".join(parts)


def texts(large: bool = True) -> Iterator[tuple[str, str]]:
    """(name, text): the included texts, then generated ones; `large` adds some of a megabyte."""
    folder = ROOT / "tests" / "data" / "texts"
    yield "included", "\n".join(f.read_bytes().decode() for f in sorted(folder.glob("*.txt")))
    for script in _SCRIPTS:
        yield script, prose(script, 30_000)
    yield "hard", hard(60_000)
    yield "runs", "a" * 20_000 + " " * 20_000 + "\n" * 5000 + "=" * 9000 + "中" * 5000
    if large:
        yield "latin, large", prose("latin", 1_500_000, 1)
        yield "chinese, large", prose("chinese", 1_500_000, 1)
        yield "hard, large", hard(600_000)


def tokenizers() -> Iterator[tuple[str, Tokenizer]]:
    """(name, tokenizer): the embedded vocabularies, and production families around a part of one."""
    import toktier

    for name in EMBEDDED:
        yield name, toktier.load(name)
    sys.path.insert(0, str(ROOT / "tests"))
    import families

    for family in FAMILIES:
        if family in families.FAMILIES:
            yield family, toktier.load(families.tokenizer(family))


def digest_of(text: str, ids: Any) -> dict[str, Any]:
    """What is stored: enough to tell that text and ids are the same, and which of the two is not."""
    array = np.asarray(ids, "<i4")
    return {
        "text": hashlib.sha256(text.encode()).hexdigest()[:32],
        "count": len(array),
        "ids": hashlib.sha256(array.tobytes()).hexdigest()[:32],
    }


def write_digests() -> None:
    """Asks the reference for the ids of all texts and stores their digests."""
    from importlib import metadata

    versions = {p: metadata.version(p) for p in ("tokenizers", "tiktoken")}
    found = {
        name: {
            kind: digest_of(text, tok.encode(text, special_tokens="text", engine="reference")) for kind, text in texts()
        }
        for name, tok in tokenizers()
    }
    DIGESTS.parent.mkdir(exist_ok=True)
    DIGESTS.write_text(json.dumps({"reference": versions, "digests": found}, indent=1) + "\n")


def check(engine: str, large: bool, wanted: list[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """(tokenizer, text, "" or what is wrong) of each stored digest."""
    stored = json.loads(DIGESTS.read_text())["digests"]
    made = list(texts(large))
    for name, tok in tokenizers():
        if wanted and name not in wanted:
            continue
        for kind, text in made:
            want = stored[name][kind]
            got = digest_of(text, tok.encode(text, special_tokens="text", engine=engine))
            if got["text"] != want["text"]:
                yield name, kind, "the text was made otherwise; the digests do not say anything"
            elif got != want:
                yield name, kind, f"{got['count']} ids, the reference gave {want['count']}"
            else:
                yield name, kind, ""
