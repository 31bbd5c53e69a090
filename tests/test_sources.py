"""Every kind of source becomes the spec that its reference agrees with."""

import base64
import hashlib
import itertools
import json
import pickle

import numpy as np
import pytest
import tiktoken_ext.openai_public as public
import tokenizers
from families import FAMILIES, merges, ranks, texts, tokenizer, tokenizer_json, written
from hypothesis import given, settings
from hypothesis import strategies as st
from source_files import FLAGS, SMALL, changed, live, no_network, own_cache, write

from toktier import embedded, normalize, reference, sources
from toktier.bpe import twin
from toktier.decode import Decoder
from toktier.errors import SourceError, SourceNotFoundError
from toktier.sources import alphabet, files, huggingface

__all__ = ["no_network", "own_cache"]  # fixtures


# -- embedded vocabularies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", embedded.NAMES)
def test_embedded_vocabularies_are_tiktokens(name, monkeypatch, no_network):
    """Digest, pattern and special tokens are those of the installed tiktoken; nothing is downloaded."""
    expected = {}
    monkeypatch.setattr(public, "load_tiktoken_bpe", lambda url, expected_hash: expected.update(sha256=expected_hash))
    theirs, ours = public.ENCODING_CONSTRUCTORS[name](), embedded.describe(name)
    assert ours == (name, expected["sha256"], theirs["pat_str"], theirs["special_tokens"])
    found = embedded.load_ranks(name)
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in found.items()]
    assert hashlib.sha256(b"".join(lines)).hexdigest() == expected["sha256"]
    spec = sources.read(name).spec
    assert spec.n_ids == len(found)
    assert all(spec.token_bytes(found[token]) == token for token in list(found)[::101])


@pytest.mark.parametrize(
    "harm", [lambda b: b[:-1000], lambda b: b"", lambda b: b[:5000] + bytes([b[5000] ^ 4]) + b[5001:]]
)
def test_damaged_embedded_data_is_refused(harm, monkeypatch):
    whole = embedded._data
    monkeypatch.setattr(embedded, "_data", lambda f: harm(whole(f)) if f.endswith("bz2") else whole(f))
    with pytest.raises(SourceError, match=r"damaged.*install toktier again"):
        embedded.load_ranks("cl100k_base")


def test_other_names_are_not_embedded():
    with pytest.raises(SourceNotFoundError, match="o200k_base"):
        embedded.load_ranks("p50k_base")


# -- tokenizer.json ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_spec_says_what_the_reference_does(family):
    source = sources.read(tokenizer(family))
    spec, native = source.spec, tokenizer(family)
    assert spec.reason == ""
    assert set(spec.added) == live(native)
    vocab = native.get_vocab(with_added_tokens=False)
    assert spec.n_ids == max(vocab.values()) + 1
    sample = dict(list(vocab.items())[::37])
    assert {alphabet.written(spec.token_bytes(i)): i for i in sample.values()} == sample
    assert len(spec.merges) == len(json.loads(native.to_str())["model"]["merges"])
    for left, right, product in spec.merges[::997].tolist():
        assert spec.token_bytes(left) + spec.token_bytes(right) == spec.token_bytes(product)
    parts = json.loads(native.to_str())
    assert json.loads(spec.pretokenizer) == parts["pre_tokenizer"]
    assert json.loads(spec.normalizer) == parts["normalizer"]
    assert json.loads(spec.post_processor) == parts["post_processor"]
    assert json.loads(spec.decoder) == parts["decoder"]
    assert spec.ignore_merges == parts["model"]["ignore_merges"]


def test_one_spec_by_every_way(tmp_path):
    """Path, folder, object and pickle give one spec, cold and warm."""
    path = write(tmp_path, tokenizer_json("qwen3"))
    ways = [path, str(path), tmp_path, tokenizer("qwen3"), path]
    found = [sources.read(way) for way in ways]
    found += [pickle.loads(pickle.dumps(source)) for source in found]
    assert {source.spec.digest for source in found} == {found[0].spec._content_digest()}
    assert sources.read(path, name="mine").spec.name == "mine"
    assert sources.read(path).spec.name == tmp_path.name
    text = texts()["german"]
    assert len({tuple(source.reference.encode(text).tolist()) for source in found}) == 1


def test_a_warm_read_neither_parses_nor_builds(tmp_path, monkeypatch):
    path = write(tmp_path, tokenizer_json("llama3"))
    cold = sources.read(path).spec
    for module, name in ((files, "_parsed"), (huggingface, "spec")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("a warm read must not come here"))
    monkeypatch.setattr(reference.TokenizerFile, "build", lambda *_: pytest.fail("a warm read builds no engine"))
    warm = sources.read(path).spec
    assert warm.digest == cold.digest == warm._content_digest()
    assert warm.added == cold.added


def test_older_files_without_defaults(tmp_path):
    """A model without `type` and a ByteLevel without `use_regex`, as the first files had them."""
    value = changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True})
    for key in ("type", "byte_fallback", "ignore_merges", "fuse_unk", "dropout"):
        del value["model"][key]
    value["model"]["merges"] = [" ".join(pair) for pair in value["model"]["merges"]]
    spec = sources.read(write(tmp_path, value)).spec
    assert spec.digest == sources.read(write(tmp_path, changed())).spec.digest


def test_a_merge_listed_twice_counts_where_it_is_last(tmp_path):
    value = changed()
    pairs = value["model"]["merges"]
    value["model"]["merges"] = [*pairs, *pairs[10:200:3]]
    source = sources.read(write(tmp_path, value))
    assert len(source.spec.merges) == len(pairs)
    native = tokenizers.Tokenizer.from_str(json.dumps(value))
    for word in ("information", "therefore", "international", "Straße"):
        piece = word.encode()
        assert twin.encode_piece(source.spec, piece) == native.encode(word, add_special_tokens=False).ids


def test_entries_outside_the_alphabet_are_only_decoded(tmp_path):
    value = changed()
    value["model"]["vocab"] |= {"\u200d": SMALL, "⌚ x": SMALL + 1}
    path = write(tmp_path, value)
    spec, native = sources.read(path).spec, tokenizers.Tokenizer.from_file(str(path))
    assert spec.reason == ""
    assert spec.unwritten == ((SMALL, "\u200d"), (SMALL + 1, "⌚ x"))
    assert spec.token_bytes(SMALL) == b""
    ids = [SMALL, 70, SMALL + 1, 71]
    decoder = Decoder(spec, normalize.load(spec.normalizer), lambda *_: pytest.fail("byte-level needs no reference"))
    assert decoder.decode(ids) == native.decode(ids, skip_special_tokens=False)
    assert set(spec.added) == live(native)


added_flags = st.fixed_dictionaries({flag: st.booleans() for flag in FLAGS})
added_lists = st.lists(
    st.tuples(st.sampled_from(["<a>", "<b>", "the", "Ġof", "", "世", "<a", "zz"]), st.integers(0, 700), added_flags),
    max_size=6,
)


@settings(max_examples=60)
@given(added_lists)
def test_added_tokens_get_the_ids_that_the_reference_gives(drawn):
    """Whatever ids a file states, also twice: the reference decides, or the spec says that it is asked."""
    listed = [{"id": i, "content": content, **flags} for content, i, flags in drawn]
    vocab = {written(token): i for i, token in enumerate(ranks(SMALL))}
    found, reason = huggingface.added_tokens(listed, (), vocab)
    value = changed(added_tokens=listed, merges=[])
    native = tokenizers.Tokenizer.from_str(json.dumps(value))
    if not reason:
        assert set(found) == live(native)
    else:
        contents = [t["content"] for t in listed]
        assert len(set(contents)) < len(contents)


# -- what runs on the reference ----------------------------------------------------------------------------------------

NO_BYTES = "the pre-tokenizer has no ByteLevel"
WORDPIECE = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
TWO_LEVELS = {
    "type": "Sequence",
    "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}] * 2,
}
REASONS = {
    "wordpiece": ({"model": WORDPIECE | {"vocab": {"[UNK]": 0, "a": 1, "##b": 2}}}, "the model is WordPiece"),
    "unigram": ({"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<u>", 0.0], ["a", -1.0]]}}, "model is Unigram"),
    "wordlevel": ({"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "ab": 1}}}, "is WordLevel"),
    "dropout": ({"dropout": 0.5}, "drops merges at random"),
    "suffix": ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix '</w>'"),
    "no pre-tokenizer": ({"pre_tokenizer": None, "byte_fallback": True}, NO_BYTES),
    "whitespace": ({"pre_tokenizer": {"type": "Whitespace"}}, NO_BYTES),
    "twice": ({"pre_tokenizer": TWO_LEVELS}, "two ByteLevel"),
    "truncation": (
        {"truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}},
        "cuts what it encodes to 3 ids",
    ),
    "padding": (
        {"padding": {"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": "!"}},
        "pads what it encodes",
    ),
    "flags": (
        {"added_tokens": [{"id": SMALL, "content": "X", **dict.fromkeys(FLAGS, on)} for on in (True, False)]},
        "listed twice, with different flags",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REASONS)
def test_what_is_not_byte_level_bpe_loads_with_a_reason(kind, tmp_path):
    parts, reason = REASONS[kind]
    path = write(tmp_path, changed(**parts))
    source, native = sources.read(path), tokenizers.Tokenizer.from_file(str(path))
    assert reason in source.spec.reason
    assert set(source.spec.added) == live(native) or kind == "flags"
    assert sources.read(path).spec.digest == source.spec.digest
    if kind != "dropout":
        assert source.reference.encode("ab a").tolist() == native.encode("ab a", add_special_tokens=False).ids


def test_tokenizers_that_differ_only_in_what_a_spec_leaves_out_have_different_digests(tmp_path):
    """Whoever shares engines by digest must not share the references of these."""
    paths = [write(tmp_path, changed(dropout=p), f"{p}.json") for p in (0.25, 0.5)]
    assert len({sources.read(path).spec.digest for path in paths}) == 2


def test_a_missing_byte_is_a_reason_only_where_the_reference_writes_something_for_it(tmp_path):
    value = changed()
    tokens, pairs = value["model"]["vocab"], value["model"]["merges"]
    lost = written(b"\x03")
    value["model"]["merges"] = [pair for pair in pairs if lost not in "".join(pair)]
    value["model"]["vocab"] = {token: i for token, i in tokens.items() if lost not in token}
    assert sources.read(write(tmp_path, value)).spec.reason == ""
    value["model"]["unk_token"] = "a"
    assert "0x03" in sources.read(write(tmp_path, value)).spec.reason


def test_ids_beyond_the_limit_are_a_reason(tmp_path):
    vocab = json.loads(tokenizer_json("gpt2", SMALL))["model"]["vocab"]
    spec = sources.read(write(tmp_path, changed(vocab=vocab | {"zzzzz": 1 << 20}))).spec
    assert "not below 1048576" in spec.reason
    assert spec.token_bytes(1 << 20) == b"zzzzz"


def test_the_alphabet_is_the_references():
    splitter = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in texts().values():
        assert "".join(part for part, _ in splitter.pre_tokenize_str(text)) == alphabet.written(text.encode())
    tokens = [written(token) for token in ranks(SMALL)] + ["⌚", "a b", ""]
    blob, ends, ok = alphabet.read(tokens)
    assert ok.tolist() == [True] * SMALL + [False, False, True]
    assert [blob[a:b].tobytes() for a, b in itertools.pairwise(ends)][:SMALL] == list(ranks(SMALL))
    assert len(merges(SMALL)) > 100
    assert np.array_equal(np.diff(ends), [len(t) for t in tokens])
