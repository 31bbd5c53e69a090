"""Text in: files and stdin, decoded exactly, in chunks that a tokenizer may encode apart."""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tqdm import tqdm

from toktier.errors import InputError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

BLOCK = 1 << 23  # bytes read at a time; one encode call is given one or two blocks of a large file

Cut = Callable[[str], int]
"""Where a text may be cut: characters in front of the last certified cut, 0 where there is none."""


def certified_cut(tokenizer: Tokenizer) -> Cut | None:
    """The cut finder of a tokenizer, None where the whole text must be encoded at once."""
    from toktier.session.cuts import CutRules

    core = tokenizer.core
    if core.reason:
        return None
    rules = CutRules(core.tables.pretok, tokenizer.spec.added, tokenizer.spec.normalizer)
    if not rules.possible:
        return None

    def last(text: str) -> int:
        # the rules look at up to two characters behind the cut, and those must have arrived
        return max(rules.last(text, len(text) - 2), 0)

    return last


def label(path: str) -> str:
    """How messages name an input."""
    return "<stdin>" if path == "-" else path


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file, or stdin for `-`, as bytes."""
    if path == "-":
        yield sys.stdin.buffer
    else:
        with Path(path).open("rb") as handle:
            yield handle


def progress(paths: list[str]) -> tqdm:
    """A progress bar in bytes of input on stderr; silent unless that is a terminal and the work takes a second."""
    known = [p for p in paths if p != "-" and Path(p).is_file()]
    total = sum(Path(p).stat().st_size for p in known) if len(known) == len(paths) else None
    return tqdm(
        total=total, unit="B", unit_scale=True, unit_divisor=1024, delay=1, leave=False, disable=not sys.stderr.isatty()
    )


def decoded(handle: BinaryIO, name: str, errors: str, bar: tqdm) -> Iterator[str]:
    """The file's text, block by block; bytes that are not UTF-8 are an InputError with their offset."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    position = 0
    while True:
        block = handle.read(BLOCK)
        begin = position - len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as e:
            raise InputError(
                f"{name}: byte {begin + e.start} (0x{e.object[e.start]:02x}) is not UTF-8 ({e.reason}); "
                "use --errors replace to put U+FFFD there, or convert the file first"
            ) from e
        position += len(block)
        bar.update(len(block))
        if text:
            yield text
        if not block:
            return


def chunks(path: str, errors: str, tokenizer: Tokenizer | None, bar: tqdm) -> Iterator[str]:
    """The text of one input in chunks that `tokenizer` may encode apart: one chunk for None, no chunk for no text."""
    with opened(path) as handle:
        waiting: list[str] = []  # text in front of which a cut was made, or the text begins
        tail = ""  # its last two characters
        cut: Cut | None = None
        for number, text in enumerate(decoded(handle, label(path), errors, bar)):
            waiting.append(text)
            around, tail = tail + text, (tail + text)[-2:]
            if number == 0 or tokenizer is None:
                continue  # most inputs end here, and need no cut
            if number == 1:
                cut = certified_cut(tokenizer)
            at = cut(around) if cut is not None and len(around) > 2 else 0
            if at > 0:
                whole = "".join(waiting)
                at += len(whole) - len(around)
                yield whole[:at]
                waiting = [whole[at:]]
        if rest := "".join(waiting):
            yield rest
