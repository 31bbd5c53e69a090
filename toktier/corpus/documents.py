"""The documents of a segment, good and bad, in order, each with its place."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from toktier.corpus.inputs import Input
from toktier.corpus.plan import separator_of
from toktier.corpus.scan import Segment
from toktier.corpus.settings import Settings
from toktier.corpus.streams import BrokenStream, opened
from toktier.errors import InputError
from toktier.extras import need

_ROWS = 1 << 12  # of a Parquet file, read at a time


@dataclasses.dataclass(slots=True)
class Document:
    """One document, or what stands in its place.

    Attributes:
      source: number of the input.
      position: byte of the decompressed input where it begins; its row in a Parquet file.
      line: of its beginning, from 1; 0 where lines do not count.
      text: None where it has none.
      problem: why it has none, or what was replaced; "" where all is well.
      id: the value of `id_field`, "" where there is none.
      size: bytes of input that it takes.
    """

    source: int
    position: int
    line: int
    text: str | None
    problem: str = ""
    id: str = ""
    size: int = 0


def read(source: Input, segment: Segment, settings: Settings) -> Iterator[Document]:
    """The documents of a segment; a damaged stream gives, last, one without text.

    Raises:
      OSError: the file cannot be read.
    """
    if source.kind == "parquet":
        yield from _rows(source, segment, settings)
        return
    jsonl = source.kind == "jsonl"
    by_line = jsonl or settings.lines
    line = segment.first
    for position, raw, broken in _pieces(source, segment, separator_of(source, settings)):
        line += by_line
        if broken:
            yield Document(segment.input, position, line if by_line else 0, None, broken, size=len(raw))
        elif jsonl:
            found = _parsed(segment.input, position, line, raw, settings)
            if found is not None:
                yield found
        else:
            if settings.lines:
                raw = raw.removesuffix(b"\r")
            text, problem = decoded(raw, position, settings)
            yield Document(segment.input, position, line if by_line else 0, text, problem, size=len(raw) + 1)


def _pieces(source: Input, segment: Segment, separator: bytes | None) -> Iterator[tuple[int, bytes, str]]:
    """(position, bytes, "" or how the stream is broken) of each piece between separators; none behind the last one."""
    stop = None if source.compression else segment.stop
    with opened(source, segment.start, stop) as stream:
        at, waiting = segment.start, bytearray()
        length = len(separator or b"")
        looked = 0  # bytes of `waiting` in which no separator begins
        broken = ""
        while True:
            try:
                block = stream.block()
            except BrokenStream as e:
                broken = f"the compressed file is damaged or ends too early ({e}); what follows is lost"
                break
            if not block:
                break
            waiting += block
            if separator is None:
                continue
            begin = 0
            while (hit := waiting.find(separator, max(begin, looked))) >= 0:
                yield at + begin, bytes(waiting[begin:hit]), ""
                begin = hit + length
                looked = begin
            del waiting[:begin]
            at += begin
            looked = max(0, len(waiting) - length + 1)
        # a file that is one document is a document when it is empty, too
        if broken or waiting or separator is None:
            yield at, bytes(waiting), broken


def decoded(raw: bytes, position: int, settings: Settings) -> tuple[str | None, str]:
    """(text, problem) of bytes that should be UTF-8; `position` is where they begin."""
    try:
        return raw.decode(), ""
    except UnicodeDecodeError as e:
        problem = f"byte {position + e.start} (0x{raw[e.start]:02x}) is not UTF-8 ({e.reason})"
        return (raw.decode("utf-8", "replace") if settings.errors == "replace" else None), problem


def _parsed(number: int, position: int, line: int, raw: bytes, settings: Settings) -> Document | None:
    """The document of a line of JSON, None where the line is blank."""
    size = len(raw) + 1
    if not position:
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    if not raw.strip():
        return None
    as_text, problem = decoded(raw, position, settings)
    if as_text is None:
        return Document(number, position, line, None, problem, size=size)
    try:
        value = json.loads(as_text)
    except (ValueError, RecursionError) as e:
        return Document(number, position, line, None, f"is not JSON ({e})", size=size)
    if not isinstance(value, dict):
        return Document(number, position, line, None, f"is {_kind(value)}, not a JSON object", size=size)
    if settings.field not in value:
        some = ", ".join(list(value)[:8]) or "none"
        missing = f"has no field {settings.field!r} (it has {some}; --field chooses one)"
        return Document(number, position, line, None, missing, size=size)
    text = value[settings.field]
    if not isinstance(text, str):
        wrong = f"field {settings.field!r} is {_kind(text)}, not a string"
        return Document(number, position, line, None, wrong, size=size)
    name, wrong = _identifier(value.get(settings.id_field) if settings.id_field else "", settings)
    return Document(number, position, line, None if wrong else text, wrong or problem, name, size)


def _identifier(value: Any, settings: Settings) -> tuple[str, str]:
    """(the id as a string, "" or what is wrong with it)."""
    if value == "":
        return "", ""
    if isinstance(value, str):
        lone = any("\ud800" <= c <= "\udfff" for c in value)
        return ("", f"field {settings.id_field!r} holds a lone surrogate") if lone else (value, "")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value), ""
    return "", f"field {settings.id_field!r} is {_kind(value)}, neither a string nor an integer"


def _kind(value: Any) -> str:
    if value is None:
        return "missing or null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), f"of type {type(value).__name__}")


def _rows(source: Input, segment: Segment, settings: Settings) -> Iterator[Document]:
    pyarrow = need("pyarrow", "corpus", f"reading {source.path}")
    parquet = need("pyarrow.parquet", "corpus", f"reading {source.path}")
    columns = [settings.column, *([settings.id_field] if settings.id_field else [])]
    row = segment.first
    with parquet.ParquetFile(source.path) as file:
        _check_strings(pyarrow, source, file.schema_arrow.field(settings.column))
        groups = list(range(segment.start, segment.stop))
        batches = file.iter_batches(_ROWS, row_groups=groups, columns=columns, use_threads=False)
        while True:
            try:
                batch = next(batches, None)
                if batch is None:
                    return
                texts = batch.column(settings.column)
                if pyarrow.types.is_dictionary(texts.type):
                    texts = texts.dictionary_decode()
                # as bytes: Arrow does not check that strings are UTF-8
                raws = texts.cast(pyarrow.large_binary()).to_pylist()
                names = batch.column(settings.id_field).to_pylist() if settings.id_field else [""] * len(raws)
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as e:
                if isinstance(e, OSError) and e.errno is not None:
                    raise
                broken = f"the Parquet file is damaged ({e}); its rows up to {_last(segment, file)} are lost"
                yield Document(segment.input, row, 0, None, broken)
                return
            for raw, value in zip(raws, names, strict=True):
                yield _row(segment.input, row, raw, value, settings)
                row += 1


def _last(segment: Segment, file: Any) -> int:
    """The last row of a segment."""
    return segment.first + sum(file.metadata.row_group(g).num_rows for g in range(segment.start, segment.stop)) - 1


def _row(number: int, row: int, raw: bytes | None, value: Any, settings: Settings) -> Document:
    if raw is None:
        return Document(number, row, 0, None, f"column {settings.column!r} is null")
    name, wrong = _identifier(value, settings)
    text, problem = decoded(raw, 0, settings)
    return Document(number, row, 0, None if wrong else text, wrong or problem, name, len(raw))


def _check_strings(pyarrow: Any, source: Input, field: Any) -> None:
    kind = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
    known = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view")
    if not any(getattr(pyarrow.types, name)(kind) for name in known if hasattr(pyarrow.types, name)):
        raise InputError(
            f"{source.path}: column {field.name!r} is of type {field.type}, not of strings; choose one with --column"
        )


def place(document: Document, source: Input) -> str:
    """Where a document is, for messages: file:line, row or byte."""
    if source.kind == "parquet":
        return f"{source.path}: row {document.position}"
    if document.line:
        return f"{source.path}:{document.line} (byte {document.position})"
    return f"{source.path}: document at byte {document.position}"
