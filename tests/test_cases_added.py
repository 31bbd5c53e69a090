"""Added tokens of every kind put on top of production families, as in public reports: ids, decoding, sessions."""

import json
from pathlib import Path

import families
import pytest
import tokenizers

import toktier

LINES = (Path(__file__).parent / "data" / "cases_added.jsonl").read_text().splitlines()
CASES = {case["id"]: case for case in map(json.loads, LINES)}
FAMILIES = ("qwen3", "llama3", "roberta")


def made(family, added):
    native = tokenizers.Tokenizer.from_str(families.tokenizer_json(family))
    for token in added:
        (native.add_special_tokens if token.get("special") else native.add_tokens)([tokenizers.AddedToken(**token)])
    return native, toktier.load(native)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [k for k, case in CASES.items() if "input" in case])
def test_ids_and_text(name, family):
    native, tokenizer = made(family, CASES[name]["add"])
    text = CASES[name]["input"]
    want = native.encode(text, add_special_tokens=False).ids
    for engine in ("auto", "host"):
        assert tokenizer.encode(text, engine=engine).tolist() == want
    assert tokenizer.decode(want) == native.decode(want, skip_special_tokens=False)
    assert tokenizer.decode(want, skip_special_tokens=True) == native.decode(want, skip_special_tokens=True)
    session = tokenizer.session()
    for k, character in enumerate(text, 1):
        session.append(character)
        assert session.ids.tolist() == native.encode(text[:k], add_special_tokens=False).ids


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [k for k, case in CASES.items() if "appends" in case])
def test_a_literal_that_comes_in_parts(name, family):
    native, tokenizer = made(family, CASES[name]["add"])
    session, text = tokenizer.session(), ""
    for part in CASES[name]["appends"]:
        session.append(part)
        text += part
        assert session.ids.tolist() == native.encode(text, add_special_tokens=False).ids


def test_thousands_of_added_tokens():
    """g081: with 3,000 literals the ids are still exact, on the engines."""
    native, tokenizer = made("qwen3", [{"content": f"<u{i}>"} for i in range(3000)])
    text = "".join(f"<u{(i * 7919) % 3000}> plain words here " for i in range(300))
    assert tokenizer.core.reason == ""
    assert tokenizer.encode(text).tolist() == native.encode(text, add_special_tokens=False).ids
