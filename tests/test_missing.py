"""Vocabularies that lack bytes: exact on the engines, and on the reference where a text holds such a byte."""

import json

import families
import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import toktier
from toktier.errors import EngineError

LOST = "\x03\x0b\xf1"


def lacking(family):
    """A production family whose vocabulary has no token with the bytes 0x03, 0x0B and 0xF1."""
    value = json.loads(families.tokenizer_json(family, 3000))
    lost = {families.written(bytes([ord(c)])) for c in LOST}
    model = value["model"]
    model["vocab"] = {t: i for t, i in model["vocab"].items() if not lost & set(t)}
    model["merges"] = [pair for pair in model["merges"] if not lost & set("".join(pair))]
    return json.dumps(value)


@pytest.fixture(scope="module", params=["gpt2", "qwen3", "roberta", "llama3"])
def both(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("lacking") / "tokenizer.json"
    path.write_text(lacking(request.param), encoding="utf-8")
    return toktier.load(path), tokenizers.Tokenizer.from_file(str(path))


def wanted(reference, text):
    return reference.encode(text, add_special_tokens=False).ids


PARTS = st.sampled_from(
    ["\x03", "\x0b", "\U00050000", "the", " a", "b", "  ", "12", "\n", "é", "e\u0301", "中", ".", "<|endoftext|>"]
)
TEXTS = st.lists(PARTS, max_size=12).map("".join)


@settings(max_examples=60)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_ids_batches_pieces_and_places_are_the_references(both, texts):
    tokenizer, reference = both
    assert tokenizer.core.reason == ""
    want = [wanted(reference, text) for text in texts]
    assert [tokenizer.encode(text).tolist() for text in texts] == want
    assert tokenizer.encode_batch(texts).to_lists() == want
    for text, ids in zip(texts, want, strict=True):
        spans = tokenizer.encode_spans(text)
        assert spans.ids.tolist() == ids
        assert len(spans.ends) == len(ids)
        assert (np.diff(spans.ends) >= 0).all()
        assert spans.n_bytes == 0 or spans.ends.max(initial=0) <= spans.n_bytes
        assert tokenizer.piece_starts(text).tolist() == tokenizer.core.reference.piece_starts(text).tolist()


@settings(max_examples=30)
@given(steps=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4), TEXTS), max_size=5))
def test_sessions_stay_exact(both, steps):
    tokenizer, reference = both
    session = tokenizer.session("the a\x03b 12 the\n\nthe")
    for at, width, text in steps:
        start = min(at, session.n_chars)
        session.edit(start, min(start + width, session.n_chars), text)
        assert session.ids.tolist() == wanted(reference, session.text)


@pytest.mark.parametrize("engine", ["host", "device"])
def test_an_engine_asked_for_by_name_refuses_with_byte_and_offset(both, engine):
    tokenizer, reference = both
    clean = "the 12 é"
    assert tokenizer.encode(clean, engine="host").tolist() == wanted(reference, clean)
    with pytest.raises(EngineError, match=r"0x03 at byte 4 of the normalized text.*engine='auto'"):
        tokenizer.encode("the \x03", engine=engine)
    with pytest.raises(EngineError, match="0xF1 at byte 1 "):
        tokenizer.encode_batch(["a", "b"], engine=engine) and tokenizer.encode("a\U00050000", engine=engine)


def test_explain_tells_which_texts_go_to_the_reference(both):
    tokenizer, _ = both
    assert tokenizer.explain().reason == tokenizer.explain("the").reason == ""
    assert "3 bytes are no token (such as 0x03)" in str(tokenizer.explain())
    told = tokenizer.explain("é\x0b")
    assert told.engine == "reference"
    assert "0x0B at byte 2" in told.reason


def test_rank_files_too():
    ranks = {bytes([b]): b for b in range(256) if b != 3} | {b"th": 256}
    encoding = tiktoken.Encoding("lacking", pat_str=r"\w+|\s+|[^\w\s]", mergeable_ranks=ranks, special_tokens={})
    tokenizer = toktier.load(encoding)
    assert tokenizer.encode("this th").tolist() == [256, ord("i"), ord("s"), ord(" "), 256]
    with pytest.raises(EngineError, match="tiktoken"):
        tokenizer.encode("a\x03")
