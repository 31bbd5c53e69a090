"""The black box gives the reference's own pieces, however many texts are asked at once."""

import json
import random

import numpy as np
import pytest
import regex
import tiktoken
import tokenizers

from toktier.pretok.blackbox import TiktokenBlackbox, pieces_of, splits
from toktier.pretok.failure import LearnError
from toktier.pretok.form import parse

GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPLITS = [
    GPT2,
    {"type": "Digits", "individual_digits": True},
    {"type": "Whitespace"},
    {"type": "Punctuation", "behavior": "MergedWithNext"},
    {"type": "Split", "pattern": {"String": ". "}, "behavior": "Removed", "invert": False},
    {"type": "Split", "pattern": {"Regex": r"\d{3}|\s+"}, "behavior": "MergedWithPrevious", "invert": True},
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": False}, GPT2]},
]

PATTERNS = {
    "cl100k_base": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
    r"|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k_base": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "r50k_base": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
}


def some_texts(count, longest=12, letters="ab1 2.\n'sé中😀\t"):
    rng = random.Random(3)
    return ["".join(rng.choices(letters, k=rng.randint(0, longest))) for _ in range(count)]


@pytest.mark.parametrize("config", SPLITS, ids=[str(i) for i in range(len(SPLITS))])
def test_tokenizers_pieces(config):
    model = {"type": "BPE", "vocab": {}, "merges": []}
    engine = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0", "pre_tokenizer": config, "model": model}))
    texts = some_texts(200)
    for text, got in zip(texts, splits(json.dumps(config), "tokenizers", texts), strict=True):
        assert got == [span for _, span in engine.pre_tokenizer.pre_tokenize_str(text)], text


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base", "r50k_base"])
def test_tiktoken_pieces(name):
    pattern = regex.compile(PATTERNS[name])
    texts = some_texts(300)
    points = [np.frombuffer(t.encode("utf-32-le"), np.uint32) for t in texts]
    box = TiktokenBlackbox(PATTERNS[name])
    for length in {len(t) for t in texts if t}:
        same = np.array([p for p in points if len(p) == length]).reshape(-1, length)
        for row, marks in zip(same, box.marks(same), strict=True):
            text = row.tobytes().decode("utf-32-le")
            assert pieces_of(marks) == [m.span() for m in pattern.finditer(text)], text


def test_a_pattern_that_drops_characters():
    pattern = "[a-z]+(?=1)|a[a-z]|[0-9]{2}| x"
    rng = random.Random(5)
    texts = ["".join(rng.choices("ab1 x2", k=9)) for _ in range(400)]
    points = np.array([[ord(c) for c in t] for t in texts], np.uint32)
    found = TiktokenBlackbox(pattern).marks(points)
    assert (found == 2).any()
    for text, marks in zip(texts, found, strict=True):
        assert pieces_of(marks) == [m.span() for m in regex.finditer(pattern, text)], text


def test_a_wrong_guess_changes_nothing():
    pattern = PATTERNS["cl100k_base"]
    box = TiktokenBlackbox(pattern)
    rng = np.random.default_rng(1)
    points = rng.choice(np.array([ord(c) for c in "as1 .'\n"], np.uint32), (64, 8))
    truth = box.marks(points)
    for guess in (truth, np.zeros_like(truth), np.ones_like(truth), np.full_like(truth, 2), np.roll(truth, 1, axis=1)):
        assert np.array_equal(box.marks(points, guess), truth)
    for row in range(20):  # one boundary wrong, in one text
        guess = truth.copy()
        guess[row, rng.integers(1, 8)] ^= 1
        assert np.array_equal(box.marks(points, guess), truth)


def test_long_texts_and_runs():
    pattern = PATTERNS["cl100k_base"]
    text = "aaaa" * 500 + " " * 700 + "7" * 100 + "中" * 300 + "\n" * 40 + "x's 'll " * 50
    got = splits(json.dumps({"type": "tiktoken", "pattern": pattern}), "tiktoken", [text])[0]
    want = [m.span() for m in regex.finditer(pattern, text)]
    assert got == want
    config = json.dumps({"type": "tiktoken", "pattern": pattern})
    for guess in (want, want[:-1], [(0, len(text))], []):
        assert splits(config, "tiktoken", [text], [guess]) == [want]
    run = "a" * 50000 + " x"
    assert splits(config, "tiktoken", [run], [[(0, 50000), (50000, 50002)]]) == [[(0, 50000), (50000, 50002)]]
    with pytest.raises(LearnError, match="50000"):
        splits(config, "tiktoken", [run])


def test_the_separator_is_not_taken_from_the_texts():
    texts = ["a\ue000b", "\ue000", "\U000f1234 x"]
    config = json.dumps({"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False})
    assert splits(config, "tokenizers", texts) == [[(0, 1), (1, 3)], [(0, 1)], [(0, 3)]]


def test_the_engines_refusal_names_the_pattern():
    with pytest.raises(LearnError, match="refuses"):
        splits(json.dumps({"type": "tiktoken", "pattern": "(?P<"}), "tiktoken", ["a"])
    with pytest.raises(LearnError, match="refuses"):
        splits('{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated","invert":false}', "tokenizers", ["a"])


def test_normal_forms():
    plain = '{"type":"ByteLevel","add_prefix_space":false}'
    trimmed = json.dumps({"type": "Sequence", "pretokenizers": [GPT2 | {"trim_offsets": False}]})
    assert parse(plain) == parse(trimmed)
    assert parse(plain.replace("false", "true")) == (parse(plain)[0], True)
    assert parse("null") == parse(json.dumps(GPT2 | {"use_regex": False})) == (None, False)
    inside = {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, GPT2 | {"add_prefix_space": True}]}
    for refused in (inside, {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}):
        with pytest.raises(LearnError, match="pretokenizer"):
            parse(json.dumps(refused))


def test_versions_name_the_installed_engines():
    assert TiktokenBlackbox("a").version == tiktoken.__version__
