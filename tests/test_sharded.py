"""A batch over four virtual devices: the ids are those of one device and of the reference."""

from __future__ import annotations

from virtual_devices import report_of

CODE = """
import json, random
import jax
import numpy as np
import families
import toktier
from toktier import sharded
from toktier.errors import EngineError, InputError

assert len(jax.devices()) == 4
texts = list(families.texts().values())
rng = random.Random(0)
docs = [t[a : a + rng.randint(0, 900)] for t in texts for a in range(0, len(t), 700)]
docs += ["", " ".join(texts), "<|im_start|>user\\n<|im_end|>", "x" * 3000]
report = {}
for family in ("llama3", "qwen3"):
    made = families.tokenizer(family)
    tok = toktier.load(made)
    want = [e.ids for e in made.encode_batch(docs, add_special_tokens=False)]
    framed = [e.ids for e in made.encode_batch(docs, add_special_tokens=True)]
    report[family] = [
        sharded.encode_sharded(tok, docs, special_tokens="parse").to_lists() == want,
        sharded.encode_sharded(tok, docs, add_special_tokens=True).to_lists() == framed,
        sharded.encode_sharded(tok, [docs[-3]]).to_lists() == tok.encode_batch([docs[-3]], engine="host").to_lists(),
        sharded.encode_sharded(tok, []).to_lists() == [],
        sharded.encode_sharded(tok, [""]).to_lists() == [[]],
    ]
engine = sharded._engine_of(tok.core, tuple(jax.devices()))
sizes = []
launch = engine._launch
engine._launch = lambda buffer, parts: sizes.append([b - a for a, b in parts]) or launch(buffer, parts)
sharded.encode_sharded(tok, docs)
report["launches"] = list(sizes)
text = (" ".join(texts) + "<|im_end|>") * 40
engine.capacities = engine.capacities[:1]
many = sharded.encode_sharded(tok, [text, *docs])  # more than one launch holds
report["many"] = [
    many.to_lists() == tok.encode_batch([text, *docs], engine="host").to_lists(),
    len(sizes) > 5,
]
for bad, error in ((["a" * 20000], EngineError), (["a"], InputError)):
    try:
        sharded.encode_sharded(tok, bad, devices=[] if error is InputError else None)
    except error as e:
        report[error.__name__] = str(e)
print(json.dumps(report))
"""


def test_four_devices_give_the_ids_of_one() -> None:
    report = report_of(CODE)
    assert all(report["llama3"])
    assert all(report["qwen3"])
    sizes = report["launches"][0]
    assert len(report["launches"]) == 1
    assert len(sizes) == 4
    assert max(sizes) < 1.2 * sum(sizes) / 4  # the work is spread evenly
    assert all(report["many"])
    assert "20000 bytes" in report["EngineError"]
    assert "devices" in report["InputError"]
