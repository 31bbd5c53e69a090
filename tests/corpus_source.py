"""Documents for the tests of `toktier corpus`."""

import json
import random
from pathlib import Path
from typing import Any

import families
import pytest

import toktier
from toktier import corpus


def fixtures(count: int, shard_bytes: int) -> tuple[Any, Any, Any]:
    """Fixtures for a module: a tokenizer, a file of documents, and the manifest of a run that nothing disturbs."""

    @pytest.fixture(scope="module")
    def tok():
        return toktier.load("cl100k_base")

    @pytest.fixture(scope="module")
    def source(tmp_path_factory):
        return write(tmp_path_factory.mktemp("in"), count)

    @pytest.fixture(scope="module")
    def undisturbed(tok, source, tmp_path_factory):
        settings = corpus.Settings(shard_bytes=shard_bytes, processes=1)
        return corpus.run(tok, [source], tmp_path_factory.mktemp("whole"), settings)

    return tok, source, undisturbed


def write(folder: Path, count: int) -> Path:
    """A JSONL file of `count` documents of up to 1,000 characters, each unlike the others, the same each time."""
    rng = random.Random(7)
    whole = "".join(families.texts().values()).replace("<|", "<")
    path = folder / "a.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for k in range(count):
            at = rng.randrange(len(whole) - 1000)
            file.write(json.dumps({"text": f"{k} {whole[at : at + rng.randrange(1000)]}"}) + "\n")
    return path
