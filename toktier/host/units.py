"""Units: stretches of a buffer between certified cuts, found by one regular expression over its bytes.

A *unit* ends where the pre-tokenizer's cut table says that every text may be cut, so its ids are those of the unit as a
text of its own: they can be looked up as they are, with no thought for pieces.  Any choice among the certified cuts is
exact; what matters is that one C loop finds them and that units come again.  So units are what goes in front of a word,
and the word:

    unit = [neither letter nor digit]* ([letter]+ | [digit]+)?, and again while the place behind is no certified cut

A character of several bytes counts as a letter and is known by its lead byte alone: a cut behind it is used where it is
one behind every character with that lead byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from toktier.pretok.tables import DROPPED, PretokTables

_MOST = 0xFD  # symbols that a shape can tell from what else it holds
_LETTERS = [*range(0x41, 0x5B), *range(0x61, 0x7B)]
_DIGITS = [*range(0x30, 0x3A)]
_OTHER = sorted({*range(128)}.difference(_LETTERS, _DIGITS))
_LEADS = range(0xC2, 0xF5)


def unit_pattern(tables: PretokTables | None) -> re.Pattern[bytes] | None:
    """What matches one unit, a run of boundaries, or at the very end nothing; None where there are no units.

    There are none without a cut between letters and a space, nor where characters are dropped (their bytes lie in no
    token, which the ids of a unit do not tell), nor without tables.
    """
    if tables is None or tables.n_symbols > _MOST or (tables.out == DROPPED).any():
        return None
    joined = _joined(tables)
    if joined[_LETTERS, 0x20].any():
        return None
    body = b"[" + _set(_OTHER) + b"]*+(?:[" + _set(_LETTERS) + rb"\x80-\xfe]++|[" + _set(_DIGITS) + b"]++)?+"
    tests = [t for t in (_behind_ascii(joined), _behind_wide(joined)) if t]
    again = b"(?:(?:" + b"|".join(tests) + b")" + body + b")*+" if tests else b""
    return re.compile(rb"\xff++|" + body + again, re.DOTALL)


def split_units(pattern: re.Pattern[bytes], data: bytes) -> list[bytes]:
    """The units and boundaries of a buffer in order; joined they are the buffer."""
    units = pattern.findall(data)
    if units:
        units.pop()  # what matches nothing, at the end
    return units


def _behind_ascii(joined: np.ndarray) -> bytes:
    """A test for a place behind an ASCII letter or digit that is no cut, where a unit would end."""
    groups: dict[tuple[int, ...], list[int]] = {}  # characters in front -> bytes behind
    for y in [*range(128), *_LEADS]:
        runs = [run for run in (_LETTERS, _DIGITS) if y not in run and not (y > 127 and run is _LETTERS)]
        before = tuple(x for run in runs for x in run if joined[x, y])
        if before:
            groups.setdefault(before, []).append(y)
    return b"|".join(b"(?=[" + _set(ys) + b"])(?<=[" + _set(xs) + b"])" for xs, ys in groups.items())


def _behind_wide(joined: np.ndarray) -> bytes:
    """A test for a place between a character of several bytes and an ASCII character, no letter, that is no cut."""
    groups: dict[tuple[int, ...], list[int]] = {}  # lead bytes in front -> bytes behind
    for y in [*_OTHER, *_DIGITS]:
        leads = tuple(lead for lead in _LEADS if joined[lead, y])
        if leads:
            groups.setdefault(leads, []).append(y)
    tests = [b"(?=[" + _set(ys) + b"])(?:" + _led_by(leads) + b")" for leads, ys in groups.items()]
    return rb"(?<=[\x80-\xbf])(?:" + b"|".join(tests) + b")" if tests else b""


def _led_by(leads: Sequence[int]) -> bytes:
    """A test that the character in front begins with one of some lead bytes."""
    if len(leads) == len(_LEADS):
        return b""
    tests = []
    for size, low, high in ((2, 0xC2, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0xF5)):
        some = [lead for lead in leads if low <= lead < high]
        if some:
            tests.append(b"(?<=[" + _set(some) + b"]" + rb"[\x80-\xbf]" * (size - 1) + b")")
    return b"|".join(tests)


def _joined(tables: PretokTables) -> np.ndarray:
    """bool[256, 256]: is a place no cut between some characters that begin with these two bytes?"""
    symbols = np.zeros((256, tables.n_symbols), bool)  # of the characters that begin with a byte
    blocks = tables.symbol.reshape(-1, 256)
    symbols[np.arange(128), blocks[tables.block[0], :128]] = True
    in_block = np.zeros((len(blocks), tables.n_symbols), bool)
    in_block[np.repeat(np.arange(len(blocks)), 256), tables.symbol] = True
    for lead in _LEADS:
        if lead < 0xE0:
            start = (lead & 31) << 6
            symbols[lead, blocks[tables.block[start >> 8], (start & 255) : (start & 255) + 64]] = True
        else:
            start, stop = (lead & 15) << 4, ((lead & 15) + 1) << 4  # blocks of 256 characters
            if lead >= 0xF0:
                start, stop = (lead & 7) << 10, min(((lead & 7) + 1) << 10, len(tables.block))
            shorter = {0xE0: 0x08, 0xF0: 0x100}.get(lead, 0)  # characters below are written in fewer bytes
            symbols[lead] = in_block[tables.block[max(start, shorter) : stop]].any(0)
    ways = symbols.astype(np.int32)
    return ways @ (~tables.cut).astype(np.int32) @ ways.T > 0


def _set(members: Sequence[int]) -> bytes:
    return b"".join(rb"\x%02x" % m for m in members)
