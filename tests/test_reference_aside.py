"""`encode_aside`, by which the reference leaves the interpreter to others, must say what `encode` says."""

from __future__ import annotations

import json
import random

import families
import pytest
import tier_parts
import tokenizers
from test_session import NASTY

import toktier
from toktier.errors import InputError, InputTypeError, SpecialTokenError

NAMES = ("llama3", "qwen3", "roberta", "sentencepiece")
PADDED = {"direction": "Left", "strategy": {"Fixed": 40}, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
CUT = {"direction": "Right", "max_length": 30, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_ids(name):
    reference = toktier.load(tier_parts.native(name)).core.reference
    rng = random.Random(name)
    texts = [*families.texts().values(), "", *("".join(rng.choices(NASTY, k=40)) for _ in range(30))]
    for text in texts:
        for special in ("parse", "text", None):
            for added in (False, True):
                want = reference.encode(text, special, added)
                assert reference.encode_aside(text, special, added).tolist() == want.tolist()
    with pytest.raises(InputError, match="lone surrogate"):
        reference.encode_aside("a\ud800")
    with pytest.raises(InputTypeError):
        reference.encode_aside(b"a")
    special = [a.content for a in reference.spec.added if a.special]
    if special:
        with pytest.raises(SpecialTokenError):
            reference.encode_aside(f"a{special[0]}", "forbid")


@pytest.mark.parametrize("key", ["padding", "truncation"])
def test_what_a_file_pads_or_cuts(key):
    value = json.loads(families.tokenizer_json("llama3"))
    value[key] = PADDED if key == "padding" else CUT
    reference = toktier.load(tokenizers.Tokenizer.from_str(json.dumps(value))).core.reference
    for text in ("short", *families.texts().values()):
        assert reference.encode_aside(text).tolist() == reference.encode(text).tolist()


def test_tiktoken_as_ever():
    reference = toktier.load("cl100k_base").core.reference
    assert (
        reference.encode_aside("a<|endoftext|>", "text").tolist() == reference.encode("a<|endoftext|>", "text").tolist()
    )
