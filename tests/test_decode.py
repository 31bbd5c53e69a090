"""Decoding equals the reference's: broken UTF-8, added tokens, padded vocabularies, streams; bad ids are named."""

from __future__ import annotations

import random
from typing import Any

import byte_vocab
import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from toktier.decode import Decoder, StreamDecoder
from toktier.errors import InputError, InputTypeError
from toktier.normalize import load
from toktier.spec import AddedToken, Spec

ADDED = [
    {"content": "<s>", "special": True, "normalized": False},
    {"content": "a b", "special": False, "normalized": False},
    {"content": "éé", "special": False, "normalized": False},  # both are characters of the byte alphabet
    {"content": "中", "special": False, "normalized": True},
    {"content": "ABC", "special": True, "normalized": True},
    {"content": "Ġx", "special": False, "normalized": True},
]


def decoder(made: tokenizers.Tokenizer) -> Decoder:
    its = byte_vocab.spec(made)
    return Decoder(its, load(its.normalizer), lambda ids, skip: made.decode(ids, skip_special_tokens=skip))


@pytest.fixture(scope="module")
def plain() -> tuple[tokenizers.Tokenizer, Decoder]:
    made = byte_vocab.reference(ADDED)
    return made, decoder(made)


any_ids = st.lists(st.integers(0, 255 + len(ADDED)), max_size=40)
utf8_ids = st.text().map(lambda t: list(t.encode("utf-8", "surrogatepass")))


@given(ids=st.one_of(any_ids, utf8_ids), skip=st.booleans())
def test_text_is_the_references(plain: Any, ids: list[int], skip: bool) -> None:
    made, ours = plain
    want = made.decode(ids, skip_special_tokens=skip)
    assert ours.decode(ids, skip_special_tokens=skip) == want
    assert ours.decode_bytes(ids, skip_special_tokens=skip).decode("utf-8", "replace") == want


@given(ids=st.one_of(any_ids, utf8_ids), skip=st.booleans())
def test_stream_adds_up(plain: Any, ids: list[int], skip: bool) -> None:
    made, ours = plain
    stream = StreamDecoder(ours, skip)
    for _ in range(2):  # a flushed decoder starts afresh
        parts = [stream.push(i) for i in ids]
        assert "".join(parts) + stream.flush() == made.decode(ids, skip_special_tokens=skip)


def test_stream_holds_back_half_a_character(plain: Any) -> None:
    stream = StreamDecoder(plain[1])
    assert [stream.push(i) for i in "é🫠".encode()] == ["", "é", "", "", "", "🫠"]
    assert stream.push("é".encode()[0]) == ""
    with pytest.raises(InputError):
        stream.push(10**6)
    assert stream.push("é".encode()[1]) == "é"
    assert (stream.push(0xE2), stream.flush(), stream.flush()) == ("", "\ufffd", "")


def test_long_and_short_lists_agree(plain: Any) -> None:
    made, ours = plain
    rng = random.Random(5)
    for n in (0, 1, 255, 256, 257, 5000):
        ids = [rng.randrange(256 + len(ADDED)) for _ in range(n)]
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == made.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("normalizer", [{"type": "Lowercase"}, {"type": "NFC"}, {"type": "Prepend", "prepend": "é"}])
def test_normalized_added_tokens(normalizer: Any) -> None:
    """The reference writes an added token as its normalizer makes it, and then may not know it as special."""
    made = byte_vocab.reference(ADDED, normalizer)
    ours = decoder(made)
    for token in range(256, 256 + len(ADDED)):
        for skip in (False, True):
            assert ours.decode([65, token], skip_special_tokens=skip) == made.decode(
                [65, token], skip_special_tokens=skip
            )


@pytest.mark.parametrize(
    "other",
    [
        None,
        decoders.Sequence([decoders.ByteLevel(), decoders.Strip("a", 1, 0)]),
        decoders.Sequence([decoders.ByteLevel()]),
        decoders.WordPiece(),
        decoders.Fuse(),
    ],
    ids=str,
)
def test_other_decoders_are_the_references(other: Any) -> None:
    made = byte_vocab.reference(ADDED)
    if other is None:
        parts = byte_vocab.json.loads(made.to_str())
        parts["decoder"] = None
        made = tokenizers.Tokenizer.from_str(byte_vocab.json.dumps(parts))
    else:
        made.decoder = other
    ours = decoder(made)
    ids = [97, 256, 98, 257, 97, 32]
    for skip in (False, True):
        assert ours.decode(ids, skip_special_tokens=skip) == made.decode(ids, skip_special_tokens=skip)
    stream = StreamDecoder(ours)
    assert "".join([stream.push(i) for i in ids]) + stream.flush() == made.decode(ids, skip_special_tokens=False)


def test_padded_vocabulary_decodes_to_nothing_and_farther_ids_are_refused(plain: Any) -> None:
    made, ours = plain
    size = 256 + len(ADDED)
    assert ours.size == size
    assert ours.decode([97, size + 1, 98]) == made.decode([97, size + 1, 98]) == "ab"
    for bad in (-1, size + size // 32, 2**31, 2**32 + 97, 2**63, 2**80, -(2**70)):
        with pytest.raises(InputError, match=rf"ids\[2\] is {bad}\b"):
            ours.decode([97, 98, bad])
    with pytest.raises(InputError, match=r"ids\[0\]"):
        ours.decode(np.array([2**63 + 5], np.uint64))


@pytest.mark.parametrize(
    "bad",
    [None, 7, 7.0, "ab", b"ab", [1, True], [1.0], ["a"], [None], [[1]], *map(np.array, ([1.0], [True], [[1]], 5))],
    ids=repr,
)
def test_what_is_no_id(plain: Any, bad: Any) -> None:
    with pytest.raises(InputTypeError, match="ids"):
        plain[1].decode(bad)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integer_arrays_of_every_kind(plain: Any, dtype: str) -> None:
    assert plain[1].decode(np.array([104, 105], dtype)) == "hi"
    assert plain[1].decode([np.dtype(dtype).type(104)]) == "h"
    assert plain[1].decode(np.zeros(0, dtype)) == plain[1].decode([]) == plain[1].decode(range(0)) == ""
    assert plain[1].decode(iter((104, 105))) == "hi"


def test_tiktoken_with_gaps() -> None:
    ranks = {bytes([b]): b for b in range(256)}
    encoding = tiktoken.Encoding("gaps", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={"<s>": 260})
    its = Spec(
        name="gaps", reference="tiktoken", reference_version=tiktoken.__version__,
        token_blob=np.arange(256, dtype=np.uint8), token_offsets=np.arange(257), merges=np.zeros((0, 3), np.int32),
        merge_rule="ranks", ignore_merges=True, pretokenizer="{}",
        normalizer="null", post_processor="null", decoder="null",
        added=(AddedToken(260, "<s>"),), reason="",
    )  # fmt: skip
    ours = Decoder(its, load("null"), lambda ids, skip: pytest.fail("not byte-level"))
    ids = [0x61, 260, 0xC3, 0xFF, 0xF0, 0x9F]
    assert ours.decode(ids) == encoding.decode(ids)
    assert ours.decode_bytes(ids) == encoding.decode_bytes(ids)
    assert ours.decode(ids, skip_special_tokens=True) == encoding.decode([i for i in ids if i != 260])
    for bad in (256, 259, 261):
        with pytest.raises(InputError, match=rf"ids\[1\] is {bad}\b"):
            ours.decode([97, bad])
