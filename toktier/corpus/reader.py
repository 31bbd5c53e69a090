"""Documents by number from what a run has written: slices of one array on disk, nothing loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from toktier.corpus.durable import digest_of
from toktier.corpus.finish import MANIFEST, VERSION
from toktier.errors import CorpusError, InputError


class Corpus:
    """A finished corpus; made by `toktier.corpus.open`.  Picklable, and safe from any thread.

    `len(corpus)` documents; `corpus[i]` is the ids of one, a view of the file.  It serves as a data source for
    Grain as it stands.

    Attributes:
      path: the folder.
      manifest: what is in it (see docs/corpus.md).
      tokens: memmap [k] of the dtype that the manifest states, all documents one after another.
      offsets: memmap int64[n + 1]; document i is `tokens[offsets[i]:offsets[i + 1]]`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.manifest = _manifest(self.path)
        flat = self.manifest.get("flat")
        if flat is None:
            raise CorpusError(
                f"{self.path}: was written with --write parquet; read its shards with pyarrow or datasets, or write it "
                "with --write flat or both"
            )
        self.tokens = self._array(flat["tokens"], flat["dtype"])
        self.offsets = self._array(flat["offsets"], flat["offsets"]["dtype"])

    def _array(self, entry: dict[str, Any], dtype: str) -> np.ndarray:
        file = self.path / entry["file"]
        there = file.stat().st_size if file.exists() else -1
        if there != entry["bytes"]:
            raise CorpusError(
                f"{file}: {'is missing' if there < 0 else f'has {there} bytes'}, the manifest says {entry['bytes']}; "
                "write the corpus again with --restart"
            )
        kind = np.dtype(dtype).newbyteorder("<")
        return np.memmap(file, kind, "r") if there else np.zeros(0, kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus, (self.path,)

    def __repr__(self) -> str:
        return f"<toktier.corpus.Corpus {str(self.path)!r}: {len(self)} documents, {len(self.tokens)} tokens>"

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> np.ndarray:
        """The ids of document `number`, a read-only view.

        Raises:
          IndexError: there is no such document.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"document {number} of {len(self)}")
        number %= len(self)
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self)))

    def verify(self) -> None:
        """Reads all files again and compares them with the manifest.

        Raises:
          CorpusError: one is missing or damaged; names it.
        """
        entries = [self.manifest["flat"]["tokens"], self.manifest["flat"]["offsets"]]
        entries += [entry for shard in self.manifest["shards"] for entry in shard["files"].values()]
        for entry in entries:
            file = self.path / entry["file"]
            if not file.exists() or digest_of(file) != {k: entry[k] for k in ("sha256", "bytes")}:
                raise CorpusError(f"{file}: is not as it was written; write the corpus again with --restart")


def open_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Opens a finished corpus.

    Raises:
      CorpusError: it is not complete, is damaged, or has no flat form.
    """
    return Corpus(path)


def _manifest(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        if folder.is_dir():
            raise CorpusError(
                f"{folder}: has no {MANIFEST}, so its run is not complete; run the same command again, which goes on"
            ) from e
        raise InputError(f"{folder}: there is no such folder") from e
    except ValueError as e:
        raise CorpusError(f"{file}: is damaged ({e}); write the corpus again with --restart") from e
    if manifest.get("toktier corpus") != VERSION:
        raise CorpusError(f"{file}: is of version {manifest.get('toktier corpus')}, this toktier reads {VERSION}")
    return manifest
