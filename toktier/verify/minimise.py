"""A failing text made short: whatever can be left out, while it still fails, is."""

from __future__ import annotations

from collections.abc import Callable

_MOST = 400  # questions asked


def minimise(text: str, fails: Callable[[str], bool], most: int = _MOST) -> str:
    """A part of `text` that still fails and from which no single run of characters tried can be left out.

    >>> minimise("abcdefgh", lambda t: "c" in t and "f" in t)
    'cf'
    """
    asked = 0

    def still(candidate: str) -> bool:
        nonlocal asked
        asked += 1
        return fails(candidate)

    size = len(text)
    while (size := min(size, len(text) // 2)) and asked < most:
        at, shrunk = 0, False
        while at < len(text) and asked < most:
            shorter = text[:at] + text[at + size :]
            if shorter and still(shorter):
                text, shrunk = shorter, True
            else:
                at += size
        if not shrunk:
            size //= 2
    return text
