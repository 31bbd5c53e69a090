"""When all shards are there: the flat arrays, the digest of the whole, the manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from toktier.corpus.durable import MARK, Pending, disk, write_json
from toktier.corpus.plan import Plan
from toktier.corpus.shards import stem
from toktier.errors import CorpusError

VERSION = 1
MANIFEST, TOKENS, OFFSETS, PROBLEMS = "manifest.json", "tokens.bin", "offsets.bin", "problems.jsonl"
LISTED = 1000  # problems in the manifest itself; more are in PROBLEMS
_BLOCK = 1 << 22


def digest(recipe: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """sha256 (hex) of what the output is: tokenizer, shards' contents in order."""
    sha = hashlib.sha256(recipe["tokenizer"]["fingerprint"].encode())
    for record in records:
        sha.update(bytes.fromhex(record["content"]))
    return sha.hexdigest()


def finish(
    folder: Path, plan: Plan, records: list[dict[str, Any]], ran: dict[str, Any], progress: Callable[[int], Any]
) -> dict[str, Any]:
    """Joins the flat parts, writes the manifest (with which the run is complete), and clears up.

    Args:
      records: of all shards, in order.
      ran: how the work was done; it is in the manifest, and not in the digest.
      progress: is told the bytes that are joined.

    Returns:
      the manifest.
    """
    manifest: dict[str, Any] = {
        "toktier corpus": VERSION,
        "digest": digest(plan.recipe, records),
        **{k: sum(r[k] for r in records) for k in ("documents", "tokens", "skipped", "replaced")},
        **plan.recipe,
        "inputs": _inputs(plan, records),
        "shards": [{k: v for k, v in r.items() if k != "problems"} for r in records],
    }
    for record in manifest["shards"]:
        record["files"] = {k: v for k, v in record["files"].items() if k == "parquet"}
    if plan.recipe["options"]["write"] != "parquet":
        manifest["flat"] = _join(folder, records, plan.recipe["options"]["dtype"], progress)
    problems = [p for r in records for p in r["problems"]]
    manifest["problems"] = problems[:LISTED]
    if len(problems) > LISTED:
        lines = b"".join(json.dumps(p, ensure_ascii=False).encode("utf-8", "replace") + b"\n" for p in problems)
        manifest["all_problems"] = _written(folder / PROBLEMS, [lines])
    manifest["run"] = ran
    write_json(folder / MANIFEST, manifest)
    clear(folder, records)
    return manifest


def _inputs(plan: Plan, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each input with its digest and what became of it."""
    kept: dict[str, int] = {}
    left_out: dict[str, int] = {}
    for record in records:
        for path, count in record["inputs"].items():
            kept[path] = kept.get(path, 0) + count
        for p in record["problems"]:
            left_out[p["source"]] = left_out.get(p["source"], 0) + p["skipped"]
    return [
        {**entry, "documents": kept.get(entry["path"], 0), "skipped": left_out.get(entry["path"], 0)}
        for entry in plan.as_json()["inputs"]
    ]


def _join(folder: Path, records: list[dict[str, Any]], dtype: str, progress: Callable[[int], Any]) -> dict[str, Any]:
    """Writes TOKENS and OFFSETS from the shards' parts."""

    def tokens() -> Any:
        for record in records:
            entry = record["files"]["tokens"]
            with open(folder / entry["file"], "rb") as part:
                size = 0
                while block := part.read(_BLOCK):
                    size += len(block)
                    progress(len(block))
                    yield block
            if size != entry["bytes"]:
                raise CorpusError(f"{folder / entry['file']}: has {size} bytes, not {entry['bytes']}; run again")

    def offsets() -> Any:
        total = 0
        yield np.zeros(1, "<i8").tobytes()
        for record in records:
            lengths = np.fromfile(folder / record["files"]["lengths"]["file"], "<i8")
            ends = total + np.cumsum(lengths, dtype="<i8")
            total += record["tokens"]
            if len(lengths) != record["documents"] or (len(ends) and ends[-1] != total):
                raise CorpusError(f"{folder / record['files']['lengths']['file']}: does not fit its record; run again")
            yield ends.tobytes()

    return {
        "dtype": dtype,
        "byte_order": "little",
        "tokens": _written(folder / TOKENS, tokens()),
        "offsets": {**_written(folder / OFFSETS, offsets()), "dtype": "int64"},
    }


def _written(target: Path, blocks: Any) -> dict[str, Any]:
    """Writes a file from its blocks; returns {"file", "bytes", "sha256"}."""
    pending = Pending(target)
    try:
        with disk(target):
            for block in blocks:
                pending.file.write(block)
        return pending.commit()
    except BaseException:
        pending.drop()
        raise


def clear(folder: Path, records: list[dict[str, Any]]) -> None:
    """Removes what only an unfinished run needs: flat parts, records, files that were being written."""
    for record in records:
        name = stem(record["shard"])
        for suffix in (".tokens", ".lengths", ".json"):
            (folder / f"{name}{suffix}").unlink(missing_ok=True)
    clear_parts(folder)


def clear_parts(folder: Path) -> None:
    """Removes files that a killed run was writing."""
    for part in folder.glob(f"*{MARK}"):
        part.unlink(missing_ok=True)
