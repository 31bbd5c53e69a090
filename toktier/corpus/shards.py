"""One unit's files.  They come first and its record last, so a shard is there when its record is.

    shard-00007.parquet   source, position, (id,) tokens: list<int32>
    shard-00007.tokens    its part of tokens.bin, until that is made
    shard-00007.lengths   int64, ids of each document, likewise
    shard-00007.json      the record: counts, digests, problems

Two digests: `sha256` of each file, and `content`, which says what is in the shard whatever form it is written in.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from toktier.corpus.documents import Document
from toktier.corpus.durable import Pending, digest_of, disk, write_json
from toktier.corpus.encode import Rows
from toktier.corpus.inputs import Input
from toktier.errors import InputError
from toktier.extras import need

PARTS = (".parquet", ".tokens", ".lengths")
ROW_GROUP = 1 << 20  # ids from which a row group is written
ROWS = 1 << 20  # documents from which one is, were they all empty


def stem(number: int) -> str:
    """How the files of a shard are called."""
    return f"shard-{number:05d}"


class ShardWriter:
    """Takes a unit's documents group by group; then `commit`, or `drop`.

    Args:
      folder: the output.
      number: of the unit.
      options: of the recipe.
      inputs: all of them.
    """

    def __init__(self, folder: Path, number: int, options: dict[str, Any], inputs: tuple[Input, ...]) -> None:
        self.number, self._folder, self._inputs = number, folder, inputs
        self._dtype = np.dtype(options["dtype"]).newbyteorder("<")
        self._with_ids = bool(options["id_field"])
        self._hashes = [hashlib.sha256() for _ in range(3)]  # of places, lengths, ids
        self._documents: dict[int, int] = {}
        self.tokens = 0
        self.problems: list[dict[str, Any]] = []
        self._files: dict[str, Pending] = {}
        self._parquet: Any = None
        self._waiting = Rows([], np.zeros(0, "<i4"), np.zeros(0, "<i8"))  # for the next row group
        try:
            if options["write"] != "parquet":
                self._pending(".tokens")
                self._pending(".lengths")
            if options["write"] != "flat":
                self._arrow = need("pyarrow", "corpus", "writing Parquet (--write flat does without it)")
                parquet = need("pyarrow.parquet", "corpus", "writing Parquet")
                self._parquet = parquet.ParquetWriter(
                    self._pending(".parquet").file,
                    self._schema(),
                    compression="zstd",
                    compression_level=1,
                    use_dictionary=["source"],
                )
        except BaseException:
            self.drop()
            raise

    def _pending(self, suffix: str) -> Pending:
        self._files[suffix] = Pending(self._folder / f"{stem(self.number)}{suffix}")
        return self._files[suffix]

    def _schema(self) -> Any:
        arrow = self._arrow
        fields = [arrow.field("source", arrow.string(), False), arrow.field("position", arrow.int64(), False)]
        if self._with_ids:
            fields.append(arrow.field("id", arrow.string(), False))
        fields.append(arrow.field("tokens", arrow.list_(arrow.int32()), False))
        return arrow.schema(fields)

    def problem(self, document: Document, skipped: bool) -> None:
        """Lists a document that was left out or changed."""
        self.problems.append(
            {
                "source": self._inputs[document.source].path,
                "position": document.position,
                **({"line": document.line} if document.line else {}),
                "skipped": skipped,
                "problem": document.problem,
            }
        )

    def write(self, found: Rows) -> None:
        """Appends documents, all of which have text."""
        with disk(self._folder / stem(self.number)):
            self._write(found)

    def _write(self, found: Rows) -> None:
        ids = np.ascontiguousarray(found.ids, "<i4")
        lengths = np.ascontiguousarray(found.lengths, "<i8")
        places, length_hash, id_hash = self._hashes
        named = []
        for d in found.documents:
            self._documents[d.source] = self._documents.get(d.source, 0) + 1
            d.text = ""  # it is encoded, and may go
            path = self._inputs[d.source].path
            named.append(f"{len(path)} {path} {d.position} {len(d.id)} {d.id}\n")  # lengths, so that it is unambiguous
        places.update("".join(named).encode())
        length_hash.update(lengths.data)
        id_hash.update(ids.data)
        self.tokens += len(ids)
        if ".tokens" in self._files:
            self._files[".tokens"].file.write(np.ascontiguousarray(ids, self._dtype).data)
            self._files[".lengths"].file.write(lengths.data)
        if self._parquet is not None:
            kept = self._waiting
            joined = (kept.documents + found.documents, _joined(kept.ids, ids), _joined(kept.lengths, lengths))
            self._waiting = self._row_groups(Rows(*joined))

    def _row_groups(self, found: Rows) -> Rows:
        """Writes row groups that are large enough; returns what is left.  They follow from the documents alone."""
        ends = np.cumsum(found.lengths)
        first = begin = 0
        while len(ends) - first >= ROWS or (len(ends) and ends[-1] - begin >= ROW_GROUP):
            stop = min(int(np.searchsorted(ends, begin + ROW_GROUP)) + 1, first + ROWS)
            some = Rows(found.documents[first:stop], found.ids[begin : ends[stop - 1]], found.lengths[first:stop])
            self._parquet.write_table(self._table(*some))
            first, begin = stop, int(ends[stop - 1])
        return Rows(found.documents[first:], found.ids[begin:], found.lengths[first:])

    def _table(self, documents: list[Document], ids: np.ndarray, lengths: np.ndarray) -> Any:
        arrow, schema = self._arrow, self._schema()
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        if offsets[-1] >= 1 << 31:
            first = documents[0]
            raise InputError(
                f"{self._inputs[first.source].path}: the document at {first.position} has {offsets[-1]} ids, more than "
                "a Parquet list holds; --write flat can take it"
            )
        n = len(documents)
        columns = {
            "source": self._strings([self._inputs[d.source].path for d in documents]),
            "position": self._numbers(np.array([d.position for d in documents], "<i8"), arrow.int64()),
            "tokens": arrow.ListArray.from_buffers(
                schema.field("tokens").type,
                n,
                [None, arrow.py_buffer(offsets.astype("<i4"))],
                children=[self._numbers(ids, arrow.int32())],
            ),
        }
        if self._with_ids:
            columns["id"] = self._strings([d.id for d in documents])
        return arrow.table([columns[name] for name in schema.names], schema=schema)

    # from buffers, since pyarrow.array imports pandas where that is installed, which takes longer than small runs

    def _numbers(self, values: np.ndarray, kind: Any) -> Any:
        return self._arrow.Array.from_buffers(kind, len(values), [None, self._arrow.py_buffer(values)])

    def _strings(self, values: list[str]) -> Any:
        data = [value.encode() for value in values]
        offsets = np.cumsum([0, *map(len, data)], dtype="<i4")
        text = self._arrow.py_buffer(b"".join(data))
        return self._arrow.StringArray.from_buffers(len(data), self._arrow.py_buffer(offsets), text)

    def commit(self) -> dict[str, Any]:
        """Makes the shard complete, and returns its record."""
        with disk(self._folder / stem(self.number)):
            if self._parquet is not None:
                if self._waiting.documents:
                    self._parquet.write_table(self._table(*self._waiting))
                self._parquet.close()
                self._parquet = None
        files = {suffix[1:]: pending.commit() for suffix, pending in self._files.items()}
        skipped = sum(p["skipped"] for p in self.problems)
        record = {
            "shard": self.number,
            "documents": sum(self._documents.values()),
            "tokens": self.tokens,
            "skipped": skipped,
            "replaced": len(self.problems) - skipped,
            "content": hashlib.sha256(b"".join(h.digest() for h in self._hashes)).hexdigest(),
            "inputs": {self._inputs[k].path: n for k, n in self._documents.items()},
            "files": files,
            "problems": self.problems,
        }
        write_json(self._folder / f"{stem(self.number)}.json", record)
        return record

    def drop(self) -> None:
        """Leaves nothing of a shard that is not complete."""
        if self._parquet is not None:
            with contextlib.suppress(OSError):
                self._parquet.close()
            self._parquet = None
        for pending in self._files.values():
            pending.drop()


def _joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.concatenate([a, b]) if len(a) else b


def finished(folder: Path, number: int, write: str) -> dict[str, Any] | None:
    """The record of a shard whose files are all as it says, else None (what is there is then made anew)."""
    wanted = {"both": PARTS, "parquet": PARTS[:1], "flat": PARTS[1:]}[write]
    try:
        record = json.loads((folder / f"{stem(number)}.json").read_text(encoding="utf-8"))
        if record["shard"] != number or {f".{k}" for k in record["files"]} != set(wanted):
            return None
        for entry in record["files"].values():
            if digest_of(folder / entry["file"]) != {k: entry[k] for k in ("sha256", "bytes")}:
                return None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return record
