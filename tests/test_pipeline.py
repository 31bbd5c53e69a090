"""What stands around the engine: boundaries, prefix spaces, surrogates, ends, and the frame of special tokens."""

from __future__ import annotations

import itertools
import json
from typing import Any

import byte_vocab
import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import processors

from toktier import pipeline
from toktier.added import AddedMatcher
from toktier.errors import InputError, SpecialTokenError
from toktier.normalize import load
from toktier.pipeline import Pipeline
from toktier.postprocess import frame

ADDED = [
    {"content": "<s>", "special": True, "normalized": False},
    {"content": "<u>", "special": False, "normalized": True},
    {"content": "<l>", "special": True, "normalized": False, "lstrip": True, "rstrip": True},
]
texts = st.lists(st.sampled_from(["<s>", "<u>", "<l>", " ", "a", "é", "e\u0301", "\x00", "  b"]), max_size=12).map(
    "".join
)


@given(batch=st.lists(texts, max_size=7), prefix=st.booleans(), normalizer=st.sampled_from([None, {"type": "NFC"}]))
def test_batch_is_the_reference_row_by_row(batch: list[str], prefix: bool, normalizer: Any) -> None:
    made = byte_vocab.reference(ADDED, normalizer, prefix)
    steps = byte_vocab.pipeline(made)
    prepared = steps.prepare(batch)
    rows = pipeline.finish_rows(prepared, byte_vocab.run(prepared))
    if batch:
        assert len(rows.offsets) == len(batch) + 1
        got = [rows.ids[a:b].tolist() for a, b in itertools.pairwise(rows.offsets)]
        assert got == [byte_vocab.wanted(made, text) for text in batch]
    assert rows.ids.dtype == np.int32
    assert rows.offsets.dtype == np.int64


@given(text=texts, prefix=st.booleans())
def test_ends_are_the_references(text: str, prefix: bool) -> None:
    """In ASCII the reference's offsets are bytes too; a prefix space takes no room."""
    text = text.encode("ascii", "ignore").decode()
    made = byte_vocab.reference(ADDED, None, prefix)
    prepared = byte_vocab.pipeline(made).prepare((text,))
    encoded = byte_vocab.run(prepared)
    ends = pipeline.finish_ends(prepared, encoded)
    want = [stop for _, stop in made.encode(text, add_special_tokens=False).offsets]
    # The reference gives a prefix space the place of the character behind it.
    spaces = [k for k, i in enumerate(pipeline.finish(prepared, encoded)) if i == 32 and prefix]
    assert [e for k, e in enumerate(ends.tolist()) if k not in spaces] == [
        e for k, e in enumerate(want) if k not in spaces
    ]
    assert pipeline.normalized_bytes(prepared) == len(text)
    assert ends.tolist() == sorted(ends.tolist())


@given(text=texts, normalizer=st.sampled_from([None, {"type": "NFC"}, {"type": "Lowercase"}]))
def test_ends_cover_the_normalized_text(text: str, normalizer: Any) -> None:
    made = byte_vocab.reference(ADDED, normalizer)
    prepared = byte_vocab.pipeline(made).prepare((text,))
    ends = pipeline.finish_ends(prepared, byte_vocab.run(prepared))
    assert (np.diff(ends, prepend=0) >= 0).all()
    assert (ends[-1] if len(ends) else 0) == pipeline.normalized_bytes(prepared)
    if normalizer is None:
        assert pipeline.normalized_bytes(prepared) == len(text.encode())


def test_continued_text_gets_no_prefix_space() -> None:
    steps = byte_vocab.pipeline(byte_vocab.reference(ADDED, None, True))
    assert steps.prepare(("a<s>b",)).buffer.tobytes() == b" a\xff b"
    assert steps.prepare(("a<s>b",), continued=True).buffer.tobytes() == b"a\xff b"
    assert steps.prepare(("", "<s>", " x")).buffer.tobytes() == b"\xff\xff\xff x"


def test_surrogates_are_refused_with_their_place() -> None:
    steps = byte_vocab.pipeline(byte_vocab.reference())
    with pytest.raises(InputError, match=r"U\+D83E at character 5"):
        steps.prepare(("half \ud83e emoji",))
    with pytest.raises(InputError, match=r"texts\[1\].*U\+DCFF at character 0"):
        steps.prepare(("fine", "\udcff"))


@given(st.text(st.characters(categories=("Cs", "Ll", "So")), max_size=9))
def test_surrogates_are_repaired_as_tiktoken_does(text: str) -> None:
    ranks = {bytes([b]): b for b in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens={})
    made = byte_vocab.reference()
    steps = Pipeline(AddedMatcher(byte_vocab.spec(made)), load("null"), False, repairs=True)
    for batch in ((text,), ("x", text)):
        assert steps.prepare(batch).buffer.tobytes().split(b"\xff")[-1] == bytes(encoding.encode(text))


def test_forbid_says_where() -> None:
    steps = byte_vocab.pipeline(byte_vocab.reference(ADDED))
    with pytest.raises(SpecialTokenError, match=r"text holds the special token '<s>' at character 3"):
        steps.prepare(("é<u<s>",), "forbid")
    with pytest.raises(SpecialTokenError, match=r"texts\[1\] holds"):
        steps.prepare(("a", "<l>"), "forbid")
    assert len(steps.prepare(("<u>",), "forbid").marks.ids) == 1


def test_plain_text_is_not_copied_step_by_step() -> None:
    """Without literals, a normalizer or prefix spaces the buffer is the text's UTF-8 and nothing else is kept."""
    prepared = byte_vocab.pipeline(byte_vocab.reference()).prepare(("plain \x00 text",))
    assert prepared.buffer.tobytes() == b"plain \x00 text"
    assert not len(prepared.marks.ids)
    assert not len(prepared.spaces)


TEMPLATE = processors.TemplateProcessing(
    single="<s> $A <l> <s>", pair="$A $B", special_tokens=[("<s>", 256), ("<l>", 258)]
)


@pytest.mark.parametrize(
    "processor",
    [
        None,
        processors.ByteLevel(trim_offsets=True),
        TEMPLATE,
        processors.BertProcessing(("<l>", 258), ("<s>", 256)),
        processors.RobertaProcessing(("<l>", 258), ("<s>", 256)),
        processors.Sequence([processors.ByteLevel(), TEMPLATE]),
        processors.Sequence([processors.ByteLevel(), processors.ByteLevel()]),
    ],
    ids=lambda p: type(p).__name__,
)
def test_frames_are_the_references(processor: Any) -> None:
    made = byte_vocab.reference(ADDED)
    if processor is not None:
        made.post_processor = processor
    its = frame(json.dumps(json.loads(made.to_str())["post_processor"]))
    assert its is not None
    rows = []
    for text in ("ab", "", "<s>x"):
        ids = np.array(byte_vocab.wanted(made, text), np.int32)
        rows.append(ids)
        assert its.around(ids).tolist() == made.encode(text).ids
    offsets = np.cumsum([0, *map(len, rows)])
    flat, at = its.around_rows(np.concatenate(rows), offsets)
    assert [flat[a:b].tolist() for a, b in itertools.pairwise(at)] == [its.around(r).tolist() for r in rows]


def test_unknown_processors_are_left_to_the_reference() -> None:
    assert frame('{"type": "Other"}') is None
    adding = {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}
    assert frame(json.dumps({"type": "Sequence", "processors": [adding, adding]})) is None
    for single in ([{"Sequence": {"id": "A", "type_id": 0}}] * 2, [{"Sequence": {"id": "B", "type_id": 0}}], []):
        assert frame(json.dumps({"type": "TemplateProcessing", "single": single, "special_tokens": {}})) is None
