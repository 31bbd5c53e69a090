"""Inputs that broke other tokenizers, in every production family: ids, pieces, batches, sessions of the reference."""

import json
import random
import re
from pathlib import Path

import families
import pytest

import toktier
from toktier.verify.compare import batch, first_difference

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "cases.jsonl").read_text().splitlines()]
MARKS = "".join(map(chr, (*range(1, 32), *range(127, 160))))  # control characters, g258
PARTS = [
    "the ",
    "Code",
    "  ",
    "\n",
    "\n\n",
    ".",
    "/",
    "://",
    "42",
    "é",
    "中文",
    "🙂",
    "'re ",
    "_x",
    "\t",
    "-- ",
    "\r\n",
    "A",
]
LONG = {
    "g063": "naïve café déjà " * 20 + "e\u0301",
    "g101": "["
    + ",".join(json.dumps({"name": f"tool_{i}", "args": {"q": "str", "k": i * i}}) for i in range(60))
    + "]",
    "g103": "中A" * 900,
    "g104": "9876543210" * 200,
    "g108": "e" + "\u0315\u0301" * 500,
    "g258": MARKS,
    "g266": "".join("w" * (i % 61) + " \n  \n \t\n" + "x " * (i % 7) for i in range(60)),
    "g268": "".join("k" * (i % 67) + ".\n/" + "/" * (i % 3) + "p " for i in range(60)),
    "g271": "".join(
        "m" * (i % 59) + ["<|im_end|>", "<|im_en", "<think>", "d|>"][i % 4] + "\u0338 " * (i % 2) for i in range(60)
    ),
    "g273": "".join("q" * (i % 53) + "e" + "\u0315" * (i % 9) + "\u0301\u1112\u1161\u11ab" for i in range(60)),
    "g275": "".join("a" * (i % 31) + "é中🙂\u3000"[i % 4] for i in range(200)),
    "g276": "".join(random.Random(67).choice(PARTS) for _ in range(3000)),
}
LONE = re.compile("[\ud800-\udfff]")
PATTERNS = [f"tiktoken:{name}" for name in families.PATTERNS]


@pytest.fixture(scope="module", params=[*families.FAMILIES, *PATTERNS])
def both(request):
    """A tokenizer and its reference as a function of (text, mode)."""
    kind, _, name = request.param.rpartition(":")
    native = families.encoding(name) if kind else families.tokenizer(name)
    tokenizer = toktier.load(native)
    reference = tokenizer.core.reference

    def wanted(text, mode):
        if kind:
            special = {"special_as_text": set(), "ordinary": set()}.get(mode, "all")
            return native.encode(text, allowed_special=special, disallowed_special=())
        return reference.encode(text, special_of(mode), mode == "hf_add_special").tolist()

    return tokenizer, wanted


def special_of(mode):
    return "text" if mode == "special_as_text" else "parse"


def usable(tokenizer):
    """The cases that this reference takes: `tokenizers` refuses lone surrogates."""
    rank_file = tokenizer.spec.reference == "tiktoken"
    for case in CASES:
        if rank_file or not LONE.search(case["input"]):
            text = rank_file and case["mode"] == "ordinary"
            yield case, ("text" if text else special_of(case["mode"])), case["mode"] == "hf_add_special"


def test_ids_by_case(both):
    tokenizer, wanted = both
    for case, special, add in usable(tokenizer):
        if add and tokenizer.spec.reference == "tiktoken":
            continue
        ids = tokenizer.encode(case["input"], special_tokens=special, add_special_tokens=add)
        assert ids.tolist() == wanted(case["input"], case["mode"]), case["id"]


def test_pieces_ids_and_ends_together(both):
    tokenizer, _ = both
    core = tokenizer.core
    texts = [case["input"] for case, _, _ in usable(tokenizer) if not LONE.search(case["input"])]
    assert first_difference(core, core.host, batch(core, texts + list(LONG.values()), "parse")) is None


def test_long_ones_and_a_batch_of_all(both):
    tokenizer, wanted = both
    texts = [case["input"] for case, _, _ in usable(tokenizer)] + list(LONG.values()) + ["", "ab", "", "'t", "\u0301"]
    want = [list(wanted(text, "special_all")) for text in texts]
    assert [tokenizer.encode(text, special_tokens="parse").tolist() for text in texts] == want
    assert tokenizer.encode_batch(texts, special_tokens="parse", engine="host").to_lists() == want


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_the_device_takes_them_all_at_once(family):
    native = families.tokenizer(family)
    texts = [c["input"] for c in CASES if not LONE.search(c["input"])] + list(LONG.values())
    got = toktier.load(native).encode_batch(texts, engine="device").to_lists()
    assert got == [native.encode(text, add_special_tokens=False).ids for text in texts]


def test_typed_character_by_character(both):
    tokenizer, wanted = both
    if tokenizer.core.normalizer.kind not in ("none", "nfc"):
        pytest.skip("sessions of this normalizer encode the whole text")
    cases = [c for c, _, _ in usable(tokenizer) if c["mode"] == "ordinary" and len(c["input"]) < 80]
    for case in cases[:6]:
        session, text = tokenizer.session("", special_tokens="parse"), ""
        for character in case["input"]:
            session.append(character)
            text += character
            assert session.ids.tolist() == list(wanted(text, "special_all")), (case["id"], text)
