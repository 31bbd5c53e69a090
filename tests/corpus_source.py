"""Documents for the tests of `toktier corpus`."""

import json
import random
from pathlib import Path

import families


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
