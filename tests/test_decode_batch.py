"""Many streams pushed together give what each gives alone, whatever is finished or reset meanwhile."""

from __future__ import annotations

from typing import Any

import byte_vocab
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

import toktier
from toktier.decode import Decoder, StreamDecoder
from toktier.decode_batch import BatchDecoder
from toktier.errors import InputError, InputTypeError
from toktier.normalize import load

ADDED = [
    {"content": "<s>", "special": True, "normalized": False},
    {"content": "éé", "special": False, "normalized": False},
]
SIZE = 256 + len(ADDED)


def decoder(other: Any = None) -> tuple[Any, Decoder]:
    made = byte_vocab.reference(ADDED)
    if other is not None:
        made.decoder = other
    its = byte_vocab.spec(made)
    return made, Decoder(its, load(its.normalizer), lambda ids, skip: made.decode(ids, skip_special_tokens=skip))


@pytest.fixture(scope="module", params=[None, decoders.WordPiece()], ids=["byte level", "WordPiece"])
def both(request: Any) -> tuple[Any, Decoder]:
    return decoder(request.param)


tokens = st.one_of(st.integers(0, SIZE - 1), st.sampled_from([*"aé🫠".encode(), 0xC3, 0xF0, 0x9F]))
steps = st.lists(
    st.one_of(
        st.lists(tokens, min_size=3, max_size=3),  # push to all
        st.tuples(st.just("some"), st.sets(st.integers(0, 2)), st.lists(tokens, min_size=3, max_size=3)),
        st.tuples(st.sampled_from(["finish", "reset"]), st.integers(0, 2)),
    ),
    max_size=30,
)


@given(steps=steps, skip=st.booleans())
def test_rows_are_streams_of_their_own(both: Any, steps: list[Any], skip: bool) -> None:
    made, ours = both
    batch, alone = BatchDecoder(ours, 3, skip), [StreamDecoder(ours, skip) for _ in range(3)]
    ids: list[list[int]] = [[], [], []]
    given: list[str] = ["", "", ""]

    def finished(row: int) -> None:
        rest = batch.finish(row)
        assert rest == alone[row].flush()
        assert given[row] + rest == made.decode(ids[row], skip_special_tokens=skip)
        ids[row], given[row] = [], ""

    for step in steps:
        if step[0] == "finish":
            finished(step[1])
        elif step[0] == "reset":
            batch.reset(step[1])
            ids[step[1]], given[step[1]], alone[step[1]] = [], "", StreamDecoder(ours, skip)
        else:
            rows = sorted(step[1], reverse=True) if step[0] == "some" else None
            pushed = step[2][: len(rows)] if rows is not None else step
            texts = batch.push(np.array(pushed, np.int32), rows)
            for row, token, text in zip(range(3) if rows is None else rows, pushed, texts, strict=True):
                assert text == alone[row].push(token)
                ids[row].append(token)
                given[row] += text
    for row in range(3):
        finished(row)


def test_a_generated_batch_adds_up() -> None:
    tok = toktier.load("cl100k_base")
    texts = ["plain text", "東京タワー 🫠🫠", "naïve café", "👩‍👩‍👧‍👦 مرحبا"]
    rows = [tok.encode(t).tolist() for t in texts]
    stream, got = tok.batch_decoder(len(texts)), [""] * len(texts)
    for k in range(max(map(len, rows))):
        live = [r for r in range(len(rows)) if k < len(rows[r])]
        for r, part in zip(live, stream.push([rows[r][k] for r in live], live), strict=True):
            assert "\ufffd" not in part
            got[r] += part
    assert [stream.finish(r) for r in range(len(rows))] == [""] * len(rows)
    assert got == texts


def test_a_refused_push_changes_nothing() -> None:
    _, ours = decoder()
    batch = BatchDecoder(ours, 2)
    first, second = "é".encode()
    assert batch.push([first, 97]) == ["", "a"]
    for error, match, ids, rows in [
        (InputError, r"ids\[1\] is 9999", [second, 9999], None),
        (InputError, "1 ids for 2 rows", [second], None),
        (InputError, "row 2 is none of the 2 rows", [second, 97], [0, 2]),
        (InputError, "row -1 is none", [second], [-1]),
        (InputError, "row 0 twice", [second, 97], [0, 0]),
        (InputTypeError, "a row is an int", [second], ["0"]),
        (InputTypeError, "ids", "ab", None),
    ]:
        with pytest.raises(error, match=match):
            batch.push(ids, rows)  # type: ignore[arg-type]
    assert batch.push([second, 98]) == ["é", "b"]
    assert BatchDecoder(ours, 0).push([]) == []
    with pytest.raises(InputError, match="rows=-1"):
        BatchDecoder(ours, -1)
    with pytest.raises(InputTypeError, match="rows must be an int"):
        BatchDecoder(ours, "2")  # type: ignore[arg-type]
