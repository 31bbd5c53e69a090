"""One pass over an input: its digest, and the segments into which it may be divided.

A text or JSONL file is divided behind a separator, a Parquet file between row groups, and what is compressed not at
all.  Which documents there are does not depend on where it is divided.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from toktier.corpus.inputs import Input
from toktier.errors import CorpusError, InputError
from toktier.extras import need

BLOCK = 1 << 20
Progress = Callable[[int], Any]


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of an input that is read by itself.

    Attributes:
      input: number of the input.
      start, stop: bytes of a file that is not compressed; row groups of a Parquet file; 0 and the file's size else.
      first: how many lines (rows, for Parquet) come before it.
      size: bytes of input, by which work is shared out.
      ranges: the bytes of the file that are read for it, as (start, stop).
      sha256: of those bytes.
    """

    input: int
    start: int
    stop: int
    first: int
    size: int
    ranges: tuple[tuple[int, int], ...]
    sha256: str


@dataclasses.dataclass(frozen=True)
class Scan:
    """What one pass finds: size in bytes, sha256 of the whole file, segments in order."""

    size: int
    sha256: str
    segments: tuple[Segment, ...]


def scan(
    number: int, source: Input, separator: bytes | None, goal: int, columns: list[str], progress: Progress
) -> Scan:
    """Reads an input once.

    Args:
      number: of the input.
      separator: what documents end with; None where the file is one document.
      goal: bytes from which a segment ends at the next separator.
      columns: of a Parquet file that are read, the text first.
      progress: is told the bytes of every block.
    """
    ends: list[tuple[int, int, str]] = []  # (stop, lines so far, sha256) of each segment
    whole, part = hashlib.sha256(), hashlib.sha256()
    size = lines = start = 0
    divided = separator is not None and not source.compression and source.kind != "parquet"
    finder = _Cuts(separator, goal) if divided and separator is not None else None
    with open(source.path, "rb") as handle:
        while block := handle.read(BLOCK):
            whole.update(block)
            done = 0
            for stop in finder.feed(block) if finder is not None else ():
                # a separator that lies across two blocks ends in the second, so a stop is never behind us
                piece = block[done : stop - size]
                part.update(piece)
                lines += piece.count(b"\n")
                ends.append((stop, lines, part.hexdigest()))
                part, done, start = hashlib.sha256(), stop - size, stop
            rest = block[done:]
            part.update(rest)
            lines += rest.count(b"\n") if divided else 0
            size += len(block)
            progress(len(block))
    if start < size or not ends:
        ends.append((size, lines, part.hexdigest()))
    if source.kind == "parquet":
        return Scan(size, whole.hexdigest(), tuple(_row_groups(number, source, goal, columns)))
    segments, start, lines = [], 0, 0
    for stop, lines_then, digest in ends:
        segments.append(Segment(number, start, stop, lines, stop - start, ((start, stop),), digest))
        start, lines = stop, lines_then
    return Scan(size, whole.hexdigest(), tuple(segments))


class _Cuts:
    """Where segments end: behind the first separator that ends `goal` bytes or more behind the last end."""

    def __init__(self, separator: bytes, goal: int) -> None:
        self._separator, self._goal = separator, goal
        self._tail = b""  # bytes that may be the front of a separator
        self._size = 0  # of what has been fed, but the tail
        self._next = goal  # an end from here on is taken
        # "\n\n" in "\n\n\n" stands in two places; which one counts is decided from the left, so each must be looked at
        self._each = any(separator.endswith(separator[:k]) for k in range(1, len(separator)))

    def feed(self, block: bytes) -> list[int]:
        """Ends of segments (offsets in the file) that this block completes."""
        data, base, length = self._tail + block, self._size, len(self._separator)
        at, found = 0, []
        while True:
            ahead = at if self._each else max(at, self._next - base - length)
            hit = data.find(self._separator, ahead)
            if hit < 0:
                break
            at = hit + length
            if base + at >= self._next:
                found.append(base + at)
                self._next = base + at + self._goal
        keep = max(at, len(data) - length + 1)
        self._tail, self._size = data[keep:], base + keep
        return found


def _row_groups(number: int, source: Input, goal: int, columns: list[str]) -> Iterator[Segment]:
    """Row groups together until they have `goal` bytes in the text column."""
    parquet = need("pyarrow.parquet", "corpus", f"reading {source.path}")
    try:
        meta = parquet.read_metadata(source.path)
    except (OSError, ValueError) as e:
        raise InputError(f"{source.path}: is no Parquet file ({e}); remove it from the inputs, or set --format") from e
    names = [meta.schema.column(k).path for k in range(meta.num_columns)]
    for role, wanted in zip(("column", "id-field"), columns, strict=False):
        if wanted not in names:
            raise InputError(
                f"{source.path}: has no column {wanted!r}; it has {', '.join(names)}: choose one with --{role}"
            )
    with open(source.path, "rb") as handle:
        begin = size = row = first = 0
        ranges: list[tuple[int, int]] = []
        for group in range(meta.num_row_groups):
            chunks = [meta.row_group(group).column(names.index(wanted)) for wanted in columns]
            for chunk in chunks:
                at = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
                ranges.append((at, at + chunk.total_compressed_size))
            size += chunks[0].total_uncompressed_size
            row += meta.row_group(group).num_rows
            if size >= goal or group == meta.num_row_groups - 1:
                yield Segment(number, begin, group + 1, first, size, tuple(ranges), _digest(handle, ranges))
                begin, size, ranges, first = group + 1, 0, [], row
    if not meta.num_row_groups:
        yield Segment(number, 0, 0, 0, 0, (), hashlib.sha256().hexdigest())


def check_unchanged(source: Input, segment: Segment) -> None:
    """Sees to it that a segment's bytes are those of the plan.

    Raises:
      CorpusError: they are not.
    """
    try:
        with open(source.path, "rb") as handle:
            digest = _digest(handle, segment.ranges)
    except FileNotFoundError as e:
        raise CorpusError(f"{source.path}: is gone since the run was planned; put it back, or --restart") from e
    if digest != segment.sha256:
        a, b = (segment.ranges[0][0], segment.ranges[-1][1]) if segment.ranges else (0, 0)
        raise CorpusError(
            f"{source.path}: was changed between bytes {a} and {b} since the run was planned; put it back as it was, "
            "or begin anew with --restart"
        )


def _digest(handle: Any, ranges: Any) -> str:
    sha = hashlib.sha256()
    for start, stop in ranges:
        handle.seek(start)
        while start < stop and (block := handle.read(min(BLOCK, stop - start))):
            sha.update(block)
            start += len(block)
    return sha.hexdigest()
