"""The units of a run: which inputs, or parts of them, make which shard.

The plan follows from inputs and settings alone, so every engine and any number of workers makes the same shards.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from toktier.corpus.inputs import Input
from toktier.corpus.scan import Scan, Segment, scan
from toktier.corpus.settings import Settings
from toktier.errors import CorpusError

VERSION = 1
NAME = "plan.json"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
      recipe: `settings.recipe`.
      inputs: in order.  scans: of each.
      units: for each shard, its segments in order.
    """

    recipe: dict[str, Any]
    inputs: tuple[Input, ...]
    scans: tuple[Scan, ...]
    units: tuple[tuple[Segment, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """What is kept on disk, and must be equal for a run to go on."""
        return {
            "toktier corpus plan": VERSION,
            **self.recipe,
            "inputs": [
                {**dataclasses.asdict(source), "bytes": found.size, "sha256": found.sha256}
                for source, found in zip(self.inputs, self.scans, strict=True)
            ],
            "units": len(self.units),
        }


def make(recipe: dict[str, Any], settings: Settings, inputs: Sequence[Input], progress: Callable[[int], Any]) -> Plan:
    """Reads all inputs once (several at a time) and shares them out."""
    columns = [settings.column, *([settings.id_field] if settings.id_field else [])]

    def one(number: int) -> Scan:
        source = inputs[number]
        return scan(number, source, separator_of(source, settings), settings.shard_bytes, columns, progress)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        scans = tuple(pool.map(one, range(len(inputs))))
    return Plan(recipe, tuple(inputs), scans, tuple(_units(scans, settings.shard_bytes)))


def separator_of(source: Input, settings: Settings) -> bytes | None:
    """What ends a document of this input; None where the file is one document (or Parquet)."""
    if source.kind == "parquet":
        return None
    if source.kind == "jsonl" or settings.lines:
        return b"\n"
    return None if settings.separator is None else settings.separator.encode()


def _units(scans: Sequence[Scan], goal: int) -> list[tuple[Segment, ...]]:
    """Segments in order, together as long as they stay within `goal` bytes."""
    units: list[tuple[Segment, ...]] = []
    open_unit: list[Segment] = []
    size = 0
    for segment in (s for found in scans for s in found.segments):
        if open_unit and size + segment.size > goal:
            units.append(tuple(open_unit))
            open_unit, size = [], 0
        open_unit.append(segment)
        size += segment.size
    if open_unit:
        units.append(tuple(open_unit))
    return units


def read(folder: Path) -> dict[str, Any] | None:
    """The plan that a folder was begun with, None where there is none."""
    try:
        return json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise CorpusError(f"{folder / NAME}: is no plan of `toktier corpus` ({e}); begin anew with --restart") from e


def stamp(folder: Path) -> tuple[int, int]:
    """(bytes, time of change in ns) of the plan on disk: another one has another; (0, 0) where there is none."""
    try:
        found = os.stat(folder / NAME)
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """In words, what a run would do otherwise than the one that began the folder."""
    new = json.loads(json.dumps(new))
    if old.get("toktier corpus plan") != new["toktier corpus plan"]:
        return [f"the plan is of version {old.get('toktier corpus plan')}, this toktier has {VERSION}"]
    told = []
    for part in ("tokenizer", "options"):
        for key in sorted({*old[part], *new[part]}):
            a, b = old[part].get(key), new[part].get(key)
            if a != b and not (key == "errors" and a == "strict"):  # what passed the strict run passes any
                told.append(f"{part if part == 'tokenizer' else 'option'} {key} was {_short(a)} and is {_short(b)}")
    before = {entry["path"]: entry for entry in old["inputs"]}
    after = {entry["path"]: entry for entry in new["inputs"]}
    told += [f"input {path} is not among the inputs any more" for path in before if path not in after]
    told += [f"input {path} is new" for path in after if path not in before]
    for path in before:
        if path in after and before[path] != after[path]:
            moved = [k for k in before[path] if before[path][k] != after[path].get(k)]
            told.append(f"input {path} changed ({', '.join(moved)})")
    if not told and list(before) != list(after):
        told.append("the inputs come in another order")
    return told


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 24 else f"{text[:20]}..."
