"""Added tokens: the ids around and between them are the reference's, whatever their flags and however they overlap."""

from __future__ import annotations

import itertools
from typing import Any

import byte_vocab
import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from toktier import added, pipeline
from toktier.added import AddedMatcher, ForbiddenToken, Marks
from toktier.spec import AddedToken, Spec

CHARS = "ab<> \t\n_-é́Aı中\u00a0\u2003\u200b"
literal = st.text(CHARS, min_size=1, max_size=4)
flags = st.fixed_dictionaries(
    {"content": literal, **{f: st.booleans() for f in ("special", "normalized", "lstrip", "rstrip", "single_word")}}
)
literals = st.lists(flags, max_size=6, unique_by=lambda t: t["content"])
NORMALIZERS = [
    None,
    {"type": "NFC"},
    {"type": "Lowercase"},
    {"type": "Prepend", "prepend": "a"},
    {
        "type": "Sequence",
        "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "b"}, "content": ""}],
    },
]


def ids(made: tokenizers.Tokenizer, text: str, mode: str = "parse") -> list[int]:
    prepared = byte_vocab.pipeline(made).prepare((text,), mode)
    return pipeline.finish(prepared, byte_vocab.run(prepared)).tolist()


def no_panic(made: tokenizers.Tokenizer, text: str, mode: str) -> list[int] | None:
    """The reference's ids, or None where it panics (a literal that begins inside white space eaten by another)."""
    try:
        return byte_vocab.wanted(made, text, mode)
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        return None


def kept(tokens: list[dict[str, Any]], normalizer: Any) -> list[dict[str, Any]]:
    """Tokens of which the normalizer leaves something: an empty literal matches everywhere in the reference."""
    text = byte_vocab.load(byte_vocab.json.dumps(normalizer)).text
    return [t for t in tokens if text(t["content"])]


@given(tokens=literals, data=st.data(), normalizer=st.sampled_from(NORMALIZERS), prefix=st.booleans())
def test_ids_are_the_references(tokens: Any, data: Any, normalizer: Any, prefix: bool) -> None:
    tokens = kept(tokens, normalizer)
    made = byte_vocab.reference(tokens, normalizer, prefix)
    parts = st.one_of(st.sampled_from([t["content"] for t in tokens] or ["a"]), st.text(CHARS, max_size=3))
    text = "".join(data.draw(st.lists(parts, max_size=10)))
    for mode in ("parse", "text"):
        want = no_panic(made, text, mode)
        if want is not None:
            assert ids(made, text, mode) == want


def test_special_as_text_still_covers_its_place() -> None:
    """The reference drops a special match after it was found, so a literal inside it is not found either."""
    made = byte_vocab.reference(
        [{"content": "<ab>", "special": True, "normalized": False}, {"content": "ab", "normalized": False}]
    )
    assert ids(made, "<ab>ab", "text") == byte_vocab.wanted(made, "<ab>ab", "text") == [*b"<ab>", 257]


def test_white_space_is_the_references() -> None:
    """lstrip eats exactly what the reference eats, for every character of the planes that have white space."""
    made = byte_vocab.reference([{"content": "<m>", "lstrip": True, "normalized": False}])
    chars = [chr(c) for c in [*range(0x3100), 0xFEFF, 0x1F600] if c != ord("<")]
    text = "".join(f"{c}<m>" for c in chars)
    assert ids(made, text) == byte_vocab.wanted(made, text)


def test_word_characters_are_the_references() -> None:
    """single_word looks at word characters as the reference's regex engine sees them, not as Python does."""
    made = byte_vocab.reference([{"content": "<m>", "single_word": True, "normalized": False}])
    chars = [chr(c) for c in [*range(0x3100), *range(0xA000, 0xAC00), *range(0x10000, 0x11000)] if c != ord("<")]
    for text in ("\n".join(f"{c}<m>" for c in chars), "\n".join(f"<m>{c}" for c in chars)):
        assert ids(made, text) == byte_vocab.wanted(made, text)


def test_many_literals() -> None:
    made = byte_vocab.reference()
    made.add_tokens([tokenizers.AddedToken(f"<u{i}>", normalized=bool(i % 2)) for i in range(3000)])
    text = "".join(f"<u{(i * 791) % 3100}> plain words " for i in range(2000))
    assert ids(made, text) == byte_vocab.wanted(made, text)


@given(texts=st.lists(st.text(CHARS, max_size=6), max_size=8), tokens=literals)
def test_batch_is_one_by_one(texts: list[str], tokens: Any) -> None:
    """No literal is found across two documents, and no flag looks across."""
    steps = byte_vocab.pipeline(byte_vocab.reference(kept(tokens, None)))
    prepared = steps.prepare(texts)
    rows = pipeline.finish_rows(prepared, byte_vocab.run(prepared))
    alone = []
    for text in texts:
        one = steps.prepare((text,))
        alone.append(pipeline.finish(one, byte_vocab.run(one)).tolist())
    if texts:
        assert [rows.ids[a:b].tolist() for a, b in itertools.pairwise(rows.offsets)] == alone


def test_forbid_names_the_literal() -> None:
    made = byte_vocab.reference([{"content": "<s>", "special": True, "normalized": True}, {"content": "<u>"}])
    matcher = AddedMatcher(byte_vocab.spec(made))
    assert matcher.cut_normalized(b"a<u>b", added.NO_MARKS, "forbid")[0] == b"a\xffb"
    with pytest.raises(ForbiddenToken) as caught:
        matcher.cut_normalized(b"a<s>", added.NO_MARKS, "forbid")
    assert caught.value.literal == "<s>"


def test_empty_normalized_literal_is_refused() -> None:
    made = byte_vocab.reference([{"content": "b"}], NORMALIZERS[4])
    normalizer = byte_vocab.load(byte_vocab.spec(made).normalizer)
    assert "normalizer" in AddedMatcher(byte_vocab.spec(made), normalize=normalizer.text).reason


def test_marks_keep_their_order() -> None:
    """Boundaries that were there and literals that are cut out later are counted in one order."""
    made = byte_vocab.reference([{"content": "<a>", "normalized": False}, {"content": "<b>", "normalized": True}])
    matcher = AddedMatcher(byte_vocab.spec(made))
    buffer, marks = matcher.cut_raw(b"<a>x\xff<b><a>", added.separators(1))
    buffer, marks = matcher.cut_normalized(buffer, marks)
    assert buffer == b"\xffx\xff\xff\xff"
    assert marks.ids.tolist() == [256, -1, 257, 256]
    assert marks.lengths.tolist() == [3, 0, 3, 3]


def tiktoken_matcher(special: dict[str, int]) -> tuple[tiktoken.Encoding, AddedMatcher]:
    ranks = {bytes([b]): b for b in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"(?s).", mergeable_ranks=ranks, special_tokens=special)
    its = Spec(
        name="bytes", reference="tiktoken", reference_version=tiktoken.__version__,
        token_blob=np.arange(256, dtype=np.uint8), token_offsets=np.arange(257), merges=np.zeros((0, 3), np.int32),
        merge_rule="ranks", ignore_merges=True, pretokenizer='{"type": "tiktoken", "pattern": "(?s)."}',
        normalizer="null", post_processor="null", decoder="null",
        added=tuple(AddedToken(i, c) for c, i in special.items()), reason="",
    )  # fmt: skip
    return encoding, AddedMatcher(its, probe=lambda text: encoding.encode(text, allowed_special="all"))


@given(
    contents=st.lists(st.text("ab<é", min_size=1, max_size=3), min_size=1, max_size=6, unique=True),
    data=st.data(),
)
def test_tiktoken_overlaps(contents: list[str], data: Any) -> None:
    """Where one special token begins with another, tiktoken's own choice is followed; allowed sets too."""
    special = {c: 256 + k for k, c in enumerate(contents)}
    encoding, matcher = tiktoken_matcher(special)
    text = "".join(data.draw(st.lists(st.one_of(st.sampled_from(contents), st.text("ab<é", max_size=2)), max_size=8)))
    allowed = frozenset(data.draw(st.sets(st.sampled_from(contents))))
    for mode, choice in (("parse", set(contents)), (allowed, set(allowed)), ("text", set())):
        buffer, marks = matcher.cut_raw(text.encode(), added.NO_MARKS, mode)
        prepared = pipeline.Prepared(np.frombuffer(buffer, np.uint8), marks, np.zeros(0, np.int64))
        got = pipeline.finish(prepared, byte_vocab.run(prepared)).tolist()
        assert got == encoding.encode(text, allowed_special=choice, disallowed_special=())
    if any(c in text for c in contents):
        with pytest.raises(ForbiddenToken):
            matcher.cut_raw(text.encode(), added.NO_MARKS, "forbid")
    else:
        assert matcher.cut_raw(text.encode(), added.NO_MARKS, "forbid") == (text.encode(), Marks(*added.NO_MARKS))
