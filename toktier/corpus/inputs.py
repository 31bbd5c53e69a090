"""Files, folders and globs made one list of inputs, each file once, in a fixed order."""

from __future__ import annotations

import dataclasses
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from toktier.errors import InputError

_KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}


@dataclasses.dataclass(frozen=True)
class Input:
    """One file to read.

    Attributes:
      path: as messages and shards name it.
      kind: "text", "jsonl" or "parquet".
      compression: "" or a value of COMPRESSIONS.
    """

    path: str
    kind: str
    compression: str = ""


def expand(names: Sequence[str], chosen: str, out: Path) -> list[Input]:
    """All inputs: files as given, folders with all that is in them (but hidden files), globs, each sorted by path.

    What lies in the output folder is not among them.

    Args:
      names: paths or globs.
      chosen: "auto", or the kind of all.
      out: where the output goes, which must be no input.

    Raises:
      InputError: a name that leads to nothing, a file named twice, or a file of the output.
    """
    found: list[Input] = []
    seen: dict[Path, str] = {}
    target = out.resolve()
    for name in names:
        at_name = len(found)
        for path in _files(name):
            real = path.resolve()
            if target in real.parents:
                if str(path) != name:
                    continue  # a folder or glob around the output means everything but that
                raise InputError(f"{path}: lies in the output folder {out}; name another --out, or other inputs")
            if real in seen:
                raise InputError(
                    f"{path}: is there twice (also as {seen[real]}), and its documents would be doubled; name it once"
                )
            seen[real] = str(path)
            found.append(_input(path, chosen))
        if len(found) == at_name:
            raise InputError(f"{name}: there is no such file, and nothing in it or like it; check the path")
    return found


def _files(name: str) -> Iterator[Path]:
    path = Path(name)
    if path.is_file():
        yield path
    elif path.is_dir():
        inside = (p.relative_to(path) for p in path.rglob("*") if p.is_file())
        yield from (path / p for p in sorted(inside) if not any(part.startswith(".") for part in p.parts))
    else:
        yield from (p for p in map(Path, sorted(glob.glob(name, recursive=True))) if p.is_file())


def _input(path: Path, chosen: str) -> Input:
    try:
        str(path).encode()
    except UnicodeEncodeError as e:
        raise InputError(f"{str(path)!r}: its name is not UTF-8, so it cannot be kept as a document's source") from e
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    inner = path.with_suffix("").suffix if compression else path.suffix
    kind = _KINDS.get(inner.lower(), "text") if chosen == "auto" else chosen
    if kind == "parquet" and compression:
        raise InputError(f"{path}: a Parquet file is compressed inside; unpack it first")
    return Input(str(path), kind, compression)
