"""Rows for training: every function on the device against a plain model in Python."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import toktier
import toktier.jax as tj
from toktier.errors import InputError

B, T = 6, 5  # documents and their most tokens, everywhere here
BOS, EOS, PAD = 901, 902, 903


def tokens_of(documents: list[list[int] | None], sizes: list[list[int]] | None = None) -> tj.Tokens:
    """Tokens as `encode_bytes` gives them; None is a row that is not ok; `sizes` are the bytes of each token."""
    ids, ends = np.zeros((2, B, T), np.int32)
    count = np.zeros(B, np.int32)
    for k, document in enumerate(documents):
        if document:
            count[k] = len(document)
            ids[k, : count[k]] = document
            ends[k, : count[k]] = np.cumsum(sizes[k][: count[k]] if sizes else np.ones(count[k]))
    ok = np.array([d is not None for d in documents])
    return tj.Tokens(*map(jnp.asarray, (ids, count, ends, ok, np.where(ok, 0, 3), count)))


DOCUMENTS = st.lists(
    st.one_of(st.none(), st.lists(st.integers(0, 99), max_size=T), st.just([])), min_size=B, max_size=B
)
# few static choices, so that little is compiled
CHOICES = [
    (4, 3, "split", None, None),
    (4, 3, "split", BOS, EOS),
    (7, 5, "split", None, EOS),
    (7, 2, "first_fit", None, None),
    (7, 3, "first_fit", BOS, EOS),
    (4, 6, "first_fit", BOS, None),
]


@functools.partial(jax.jit, static_argnums=range(1, 6))
def packed_by(tokens, length, rows, how, bos, eos, start=None, first=None, last=None):
    return tj.pack(tokens, length, rows, how=how, bos=bos, eos=eos, pad=PAD, start=start, first=first, last=last)


def elements(documents, bos, eos, first=(True,) * B, last=(True,) * B):
    """(part, id, flat index of the token or -1) of each part's elements."""
    roots = np.cumsum([k == 0 or f for k, f in enumerate(first)])
    found = []
    for d, document in enumerate(documents):
        whole = [documents[k] for k in range(B) if roots[k] == roots[d]]
        own = [(d, token, d * T + k) for k, token in enumerate(document or [])]
        if None not in whole and any(whole):
            own = [(d, bos, -1)] * (bos is not None and first[d]) + own + [(d, eos, -1)] * (eos is not None and last[d])
            found.append(own)
        else:
            found.append([])
    return found


def model(documents, length, rows, how, bos, eos, start, first=(True,) * B, last=(True,) * B):
    """What `pack` is to give, element by element."""
    whole = elements(documents, bos, eos, first, last)
    left = [own[s:] for own, s in zip(whole, start, strict=True)]
    bins: list[list[tuple[int, int, int]]] = [[] for _ in range(rows)]
    taken = list(start)
    if how == "split":
        flat = [e for own in left for e in own][: length * rows]
        for k, element in enumerate(flat):
            bins[k // length].append(element)
            taken[element[0]] += 1
    else:
        for d, own in enumerate(left):
            fitting = [row for row in bins if own and len(row) + len(own) <= length]
            if fitting:
                fitting[0].extend(own)
                taken[d] += len(own)
    ids, segments, places, source = (np.full((rows, length), fill) for fill in (PAD, 0, 0, -1))
    for r, row in enumerate(bins):
        segment, place = 0, 0
        for c, (document, value, index) in enumerate(row):
            fresh = c == 0 or (row[c - 1][0] != document and bool(first[document]))
            segment, place = segment + fresh, 0 if fresh else place + 1
            ids[r, c], segments[r, c], places[r, c], source[r, c] = value, segment, place, index
    size = [len(own) for own in whole]
    overflow = any(t < s for t, s in zip(taken, size, strict=True))
    return ids, segments, places, source, sum(map(bool, bins)), taken, size, overflow


def check(documents, choice, start, *parts):
    size = [len(own) for own in elements(documents, *choice[3:], *parts)]
    start = [min(s, n) for s, n in zip(start, size, strict=True)]
    found = packed_by(tokens_of(documents), *choice, np.array(start, np.int32), *map(np.array, parts))
    want = model(documents, *choice, start, *parts)
    for name, a, b in zip(found._fields, found, want, strict=True):
        assert np.asarray(a).tolist() == np.asarray(b).tolist(), name
    return found


@given(DOCUMENTS, st.sampled_from(CHOICES), st.lists(st.integers(0, T + 2), min_size=B, max_size=B))
@example([[1] * T] * B, CHOICES[1], [0] * B)
@example([None] * B, CHOICES[4], [0] * B)
@settings(max_examples=300)
def test_pack_is_the_plain_model(documents, choice, start) -> None:
    check(documents, choice, start)


@given(DOCUMENTS, st.sampled_from([c for c in CHOICES if c[2] == "split"]))
@settings(max_examples=60)
def test_what_does_not_fit_goes_on_in_the_next_call(documents, choice) -> None:
    whole = [e[1:] for own in elements(documents, *choice[3:]) for e in own]
    start, seen = [0] * B, []
    for _ in range(len(whole) + 1):
        found = check(documents, choice, start)
        there = np.asarray(found.segment_ids) > 0
        seen += list(zip(np.asarray(found.ids)[there].tolist(), np.asarray(found.source)[there].tolist(), strict=True))
        if not found.overflow:
            break
        start = found.taken.tolist()
    assert seen == whole


FLAGS = st.lists(st.booleans(), min_size=B, max_size=B)


@given(DOCUMENTS, st.sampled_from([CHOICES[1], CHOICES[2]]), FLAGS, FLAGS)
@settings(max_examples=200)
def test_documents_in_parts(documents, choice, first, last) -> None:
    check(documents, choice, [0] * B, first, last)


def test_a_long_document_in_parts_is_packed_as_a_whole_one() -> None:
    import families

    tok = toktier.load("o200k_base")
    tables = tj.tables(tok, special_tokens="parse")
    long = families.texts()["chinese"][:150] + "<|endoftext|>" + families.texts()["english"][:700]
    texts = ["short", long, "", "end"]
    parts = tj.cut(tok, texts, 128)
    assert "".join(parts.texts) == "".join(texts)
    assert max(len(p.encode()) for p in parts.texts) <= 128
    assert parts.first.sum() == parts.last.sum() == len(texts)
    rows = tj.batch(tok, parts.texts, length=128, rows=16)
    assert len(parts.texts) > 16 or rows is not None
    ids = [tok.encode(text, special_tokens="parse").tolist() for text in texts]
    found, k = [], 0
    for _ in texts:
        own: list[int] = []
        while True:
            own += tok.encode(parts.texts[k], special_tokens="parse").tolist()
            k += 1
            if parts.last[k - 1]:
                break
        found.append(own)
    assert found == ids
    tokens = tj.encode_bytes(tables, rows.data, rows.lengths)
    first, last = (np.pad(x, (0, 16 - len(x)), constant_values=True) for x in parts[1:])
    packed = tj.pack(tokens, 1024, 1, eos=199_999, first=first, last=last)
    want = [e for own in ids if own for e in [*own, 199_999]]
    assert packed.ids[0, : len(want)].tolist() == want
    assert packed.segment_ids[0].max() == 3
    assert packed.positions[0].max() == len(ids[1])


def test_what_cannot_be_cut_is_refused() -> None:
    tok = toktier.load("o200k_base")
    with pytest.raises(InputError, match=r"texts\[1\] cannot be cut within 16 bytes from character 0"):
        tj.cut(tok, ["a", "x" * 17], 16)
    assert tj.cut(tok, ["x" * 16, "a b"], 16).texts == ["x" * 16, "a b"]


def test_a_document_longer_than_a_row_is_left_whole_by_first_fit() -> None:
    found = check([[1, 2, 3, 4, 5], [6], None, [], [7, 8, 9], []], CHOICES[5], [0] * B)
    assert found.taken.tolist() == [0, 2, 0, 0, 4, 0]
    assert found.size.tolist() == [6, 2, 0, 0, 4, 0]
    assert bool(found.overflow)


def test_values_follow_their_tokens() -> None:
    tokens = tokens_of([[1, 2], [3], [], [4, 5, 6], None, [7]])
    found = packed_by(tokens, *CHOICES[1])
    weight = tj.take(found, tokens.ids * 10, fill=-1)
    assert weight.dtype == jnp.int32
    ids = np.asarray(found.ids)
    assert np.asarray(weight).tolist() == np.where(np.asarray(found.source) >= 0, ids * 10, -1).tolist()


@given(DOCUMENTS, st.sampled_from([1, 3, 8]), st.sampled_from(["left", "right"]))
@settings(max_examples=60)
def test_pad_and_truncate(documents, length, side) -> None:
    tokens = tokens_of(documents)
    ids, mask, ok = jax.jit(tj.pad, static_argnums=(1, 2))(tokens, length, PAD)
    shorter, cut = jax.jit(tj.truncate, static_argnums=(1, 2))(tokens, length, side)
    ids, mask, ok, shorter, cut = jax.tree.map(np.asarray, (ids, mask, ok, shorter, cut))
    for k, document in enumerate(documents):
        own = document or []
        fits = document is not None and len(own) <= length
        assert bool(ok[k]) == fits
        shown = own if fits else []
        assert ids[k].tolist() == shown + [PAD] * (length - len(shown))
        assert mask[k].tolist() == [True] * len(shown) + [False] * (length - len(shown))
        kept = own[:length] if side == "right" else own[max(0, len(own) - length) :]
        assert shorter.ids[k].tolist() == kept + [0] * (length - len(kept))
        behind = list(range(1, len(own) + 1))
        behind = behind[:length] if side == "right" else behind[max(0, len(own) - length) :]
        assert shorter.ends[k, : len(kept)].tolist() == behind
        assert (int(shorter.count[k]), int(cut[k])) == (len(kept), len(own) - len(kept))
        assert bool(shorter.ok[k]) == (document is not None)


def inside(rule: str, first: int, behind: int, start: int, stop: int) -> bool:
    if stop <= start:
        return False
    own = set(range(first, behind))
    span = set(range(start, stop))
    if not own:
        return first in span
    return {
        "touch": bool(own & span),
        "whole": own <= span,
        "start": first in span,
        "end": behind - 1 in span,
    }[rule]


@given(
    DOCUMENTS,
    st.lists(st.lists(st.integers(0, 3), min_size=T, max_size=T), min_size=B, max_size=B),
    st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=2, max_size=2), min_size=B, max_size=B
    ),
    st.sampled_from(["touch", "whole", "start", "end"]),
)
@settings(max_examples=100)
def test_masks_by_span(documents, sizes, spans, rule) -> None:
    tokens = tokens_of(documents, sizes)
    edges = np.array(spans, np.int32)
    mask = jax.jit(tj.span_mask, static_argnames="rule")(tokens, edges[..., 0], edges[..., 1], rule=rule)
    stops = np.sort(edges[..., 0], 1)
    parts = jax.jit(tj.part_ids, static_argnames="rule")(tokens, stops, rule="end" if rule == "end" else "start")
    mask, parts = np.asarray(mask), np.asarray(parts)
    for k, document in enumerate(documents):
        own = document or []
        ends = np.cumsum(sizes[k])
        want, part = [False] * T, [-1] * T
        for j in range(len(own)):
            first, behind = int(ends[j] - sizes[k][j]), int(ends[j])
            want[j] = any(inside(rule, first, behind, a, b) for a, b in spans[k])
            place = max(first, behind - 1) if rule == "end" else first
            part[j] = int((stops[k] <= place).sum())
        assert mask[k].tolist() == want
        assert parts[k].tolist() == part


def test_the_answers_of_a_chat_are_masked_through_packing() -> None:
    tok = toktier.load("o200k_base")
    chat = [("user", "Why?\n"), ("assistant", "Because 東京 is far.\n"), ("user", "OK"), ("assistant", "Bye")]
    parts = [text for _, text in chat]
    stops = np.cumsum([len(p.encode()) for p in parts])
    rows = tj.batch(tok, ["".join(parts), "other text"], length=128, rows=16)
    tables = tok.tables

    def step(data, lengths, starts, ends):
        tokens = tj.encode_bytes(tables, data, lengths, max_tokens=40)
        packed = tj.pack(tokens, 16, 4, eos=199999)
        return tokens, packed, tj.take(packed, tj.span_mask(tokens, starts, ends), fill=False)

    spans = np.zeros((2, 16, 2), np.int32)
    spans[0, 0], spans[1, 0] = stops[[0, 2]], stops[[1, 3]]
    tokens, packed, mask = step(rows.data, rows.lengths, *spans)
    answered = np.asarray(packed.ids)[np.asarray(mask)]
    assert tok.decode(answered) == parts[1] + parts[3]
    roles = tj.part_ids(tokens, np.broadcast_to(stops, (16, 4)))[0]
    assert [tok.decode(np.asarray(tokens.ids[0])[np.asarray(roles) == k]) for k in range(4)] == parts


def test_arguments_that_cannot_be_are_refused() -> None:
    tokens = tokens_of([[1]] * B)
    for wrong in (
        {"length": 0},
        {"rows": -1},
        {"how": "best"},
        {"first": np.ones(3, bool)},
        {"last": np.ones(B, np.int32)},
        {"start": np.zeros(3, np.int32)},
        {"length": 1 << 20, "rows": 1 << 12},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            tj.pack(tokens, **{"length": 4, "rows": 2, **wrong})
    single = jax.tree.map(lambda x: x[0], tokens)
    with pytest.raises(InputError, match="rows"):
        tj.pack(single, 4, 2)
    with pytest.raises(InputError, match="side"):
        tj.truncate(tokens, 4, "middle")
    with pytest.raises(InputError, match="rule"):
        tj.span_mask(tokens, np.zeros((B, 1)), np.zeros((B, 1)), rule="most")
    with pytest.raises(InputError, match="starts"):
        tj.span_mask(tokens, np.zeros(B), np.zeros((B, 1)))
    with pytest.raises(InputError, match="rule"):
        tj.part_ids(tokens, np.zeros((B, 1)), rule="whole")
