"""Files of any size: read in blocks, decoded exactly, cut where a tokenizer may encode apart, encoded chunk by chunk.

    bytes --decoded--> str blocks --apart--> chunks that end at certified cuts --IdStream--> int32 arrays

Because a chunk ends at a certified cut (`session/cuts.py`), the ids of the chunks one after the other are those of the
whole text, added tokens, NFC and prefix space included, and memory follows the chunk, not the file.
"""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np

from toktier import npy
from toktier.errors import InputError, InputTypeError

if TYPE_CHECKING:
    from toktier.added import Mode
    from toktier.session.cuts import CutRules
    from toktier.tokenizer import Tokenizer

CHUNK = 1 << 22  # bytes read at a time; one encode call is given one or two blocks of a large file

Progress = Callable[[int], Any]
"""Is told the bytes of each block that was read."""


class Readable(Protocol):
    """What is read: a file opened in binary mode, or anything with its `read`."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, b"" at the end."""


class IdStream:
    """The ids of a file, chunk by chunk; made by `Tokenizer.encode_file`, and read once.

    Iterate over it for int32 arrays which, one after the other, are the ids; or let `array` or `save` do so.

    Attributes:
      name: what messages call the input.
      bytes_read: bytes of input so far.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        file: str | os.PathLike[str] | Readable,
        *,
        mode: Mode,
        engine: str,
        add_special_tokens: bool,
        chunk_bytes: int,
        errors: str,
        progress: Progress | None,
    ) -> None:
        if isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, (int, np.integer)):
            raise InputTypeError(f"chunk_bytes must be an int, not {type(chunk_bytes).__name__}")
        if chunk_bytes < 1:
            raise InputError(f"chunk_bytes={chunk_bytes} is no size; it is the bytes to read at a time")
        if errors not in ("strict", "replace"):
            raise InputError(f"errors={errors!r} is not known; use 'strict' or 'replace'")
        if not (isinstance(file, (str, os.PathLike)) or callable(getattr(file, "read", None))):
            raise InputTypeError(f"file must be a path or a file opened in binary mode, not {type(file).__name__}")
        self.name = str(getattr(file, "name", "the stream") if callable(getattr(file, "read", None)) else file)
        self.bytes_read = 0
        self._tokenizer, self._mode, self._engine, self._errors = tokenizer, mode, engine, errors
        self._add, self._block, self._progress = add_special_tokens, int(chunk_bytes), progress
        self._ids = self._chunks(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        return next(self._ids)

    def array(self) -> np.ndarray:
        """int32[k]: all ids (that are left) in one array."""
        parts = list(self)
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])

    def save(self, path: str | os.PathLike[str]) -> int:
        """Writes the ids (that are left) as one .npy array; the file appears only when it is complete.

        `numpy.load(path, mmap_mode="r")` reads it without loading it.

        Returns:
          how many ids were written.
        """
        with npy.complete_file(path) as handle:
            writer = npy.NpyWriter(handle)
            for ids in self:
                writer.write(ids)
            return writer.close()

    def _chunks(self, file: str | os.PathLike[str] | Readable) -> Iterator[np.ndarray]:
        core = self._tokenizer.core
        whole = bool(core.reason)  # no certified cuts, and only the reference knows what goes around a text
        frame = None if whole or not self._add else core.frame
        with _opened(file) as (handle, size):
            if frame is not None and len(frame.before):
                yield frame.before.copy()
            begin = 0
            for chunk in apart(self._texts(handle), None if whole else lambda: cut_rules(self._tokenizer)):
                name = self._tokenizer._engine(self._engine, max(size, self.bytes_read))
                try:
                    ids = self._tokenizer._encoded(chunk, self._mode, name, self._engine == "auto", whole and self._add)
                except InputError as e:
                    after = f" (offsets count from character {begin})" if begin else ""
                    error = type(e)(f"{self.name}: {e}{after}")
                    error.__dict__.update(e.__dict__)
                    raise error from e
                begin += len(chunk)
                yield ids
            if not begin and whole and self._add:
                yield self._tokenizer._encoded("", self._mode, "reference", False, True)
            if frame is not None and len(frame.after):
                yield frame.after.copy()

    def _texts(self, handle: Readable) -> Iterator[str]:
        def read(size: int) -> bytes:
            block = handle.read(size)
            if not isinstance(block, bytes):
                raise InputTypeError(f"{self.name} reads {type(block).__name__}, not bytes; open it in binary mode")
            self.bytes_read += len(block)
            if self._progress is not None:
                self._progress(len(block))
            return block

        return decoded(read, self.name, self._errors, self._block)


def cut_rules(tokenizer: Tokenizer) -> CutRules | None:
    """Where a text of this tokenizer may be cut, None where it must be encoded whole."""
    from toktier.session.cuts import CutRules

    core = tokenizer.core
    if core.reason:
        return None
    rules = CutRules(core.tables.pretok, tokenizer.spec.added, tokenizer.spec.normalizer)
    return rules if rules.possible else None


def apart(texts: Iterable[str], find_rules: Callable[[], CutRules | None] | None) -> Iterator[str]:
    """The texts joined, and cut again where a tokenizer may encode apart.

    Args:
      texts: blocks of one text.
      find_rules: gives the cuts; asked for only when a second block comes.  None: never cut.

    Yields:
      str, none of them empty; their sum is the sum of the texts.
    """
    waiting: list[str] = []  # text in front of which a cut was made, or the text begins
    tail = ""  # its last two characters
    rules: CutRules | None = None
    for number, text in enumerate(texts):
        waiting.append(text)
        around, tail = tail + text, (tail + text)[-2:]
        if number == 0 or find_rules is None:
            continue  # most inputs end here, and need no cut
        if number == 1:
            rules = find_rules()
        # the rules look at up to two characters behind the cut, and those must have arrived
        at = rules.last(around, len(around) - 2) if rules is not None and len(around) > 2 else 0
        if at > 0:
            whole = "".join(waiting)
            at += len(whole) - len(around)
            yield whole[:at]
            waiting = [whole[at:]]
    if rest := "".join(waiting):
        yield rest


def decoded(read: Callable[[int], bytes], name: str, errors: str, block_bytes: int) -> Iterator[str]:
    """The text of a file in UTF-8, block by block, none empty; nothing else is translated.

    Raises:
      InputError: bytes that are not UTF-8, where `errors` is "strict"; names their offset.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    position = 0
    while True:
        block = read(block_bytes)
        begin = position - len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as e:
            raise InputError(
                f"{name}: byte {begin + e.start} (0x{e.object[e.start]:02x}) is not UTF-8 ({e.reason}); "
                "errors='replace' puts U+FFFD there, or convert the file first"
            ) from e
        position += len(block)
        if text:
            yield text
        if not block:
            return


@contextlib.contextmanager
def _opened(file: str | os.PathLike[str] | Readable) -> Iterator[tuple[Readable, int]]:
    """The file and its size in bytes where that is known, else 0; a file that was given stays open."""
    if isinstance(file, (str, os.PathLike)):
        handle: BinaryIO
        with Path(file).open("rb") as handle:
            yield handle, os.fstat(handle.fileno()).st_size
        return
    size = 0
    with contextlib.suppress(OSError, AttributeError, ValueError):
        size = os.fstat(file.fileno()).st_size  # type: ignore[attr-defined]
    yield file, size
