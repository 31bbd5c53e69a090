"""Hard inputs: texts that are one piece, or one mark over and over, which made other tokenizers slow or crash."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

FULL = {
    "letter": 1_000_000,
    "letters": 1_000_000,
    "spaces": 1_000_000,
    "spaces_word": 1_000_000,
    "newlines": 1_000_000,
    "crlf": 1_000_000,
    "digits": 1_000_000,
    "zeros": 1_000_000,
    "base64": 500_000,
    "cjk": 200_000,
    "combining": 400_000,
    "marks": 500_000,
    "punctuation": 1_000_000,
    "emoji": 500_000,
}
"""Bytes of each input at full size."""


def make(name: str, size: int) -> str:
    """The hard input of this name in about `size` bytes of UTF-8, the same each time.

    >>> make("marks", 8)
    '=-=-=-=-'
    >>> sorted(FULL) == sorted(_MAKERS)
    True
    """
    return _MAKERS[name](size)


def _repeat(unit: str) -> Callable[[int], str]:
    """Whole characters of `unit`, over and over."""

    def made(size: int) -> str:
        width = len(unit.encode())
        raw = (unit * (size // width + 1)).encode()[:size]
        return raw.decode("utf-8", "ignore")

    return made


def _letters(size: int) -> str:
    rng = random.Random(1)
    return "".join(rng.choices("etaoinshrdlucmfwypvbgkjqxz", k=size))


def _digits(size: int) -> str:
    rng = random.Random(2)
    return "".join(rng.choices("0123456789", k=size))


def _base64(size: int) -> str:
    return base64.b64encode(random.Random(3).randbytes(size * 3 // 4 + 3)).decode()[:size]


def _cjk(size: int) -> str:
    rng = random.Random(4)
    return "".join(chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(size // 3))


_MAKERS: dict[str, Callable[[int], str]] = {
    "letter": _repeat("a"),
    "letters": _letters,
    "spaces": _repeat(" "),
    "spaces_word": lambda size: " " * (size - 1) + "x",
    "newlines": _repeat("\n"),
    "crlf": _repeat("\r\n"),
    "digits": _digits,
    "zeros": _repeat("0"),
    "base64": _base64,
    "cjk": _cjk,
    "combining": lambda size: "e" + "\u0301" * (size // 2),
    "marks": _repeat("=-"),
    "punctuation": _repeat("!"),
    "emoji": _repeat("\U0001f469\u200d\U0001f467"),
}
