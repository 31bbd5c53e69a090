"""The law of sessions: after any sequence of changes the ids are those of a fresh encode by the reference."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import random

import families
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import toktier
from toktier.errors import EngineError, InputError, InputTypeError, SessionClosedError, SpecialTokenError
from toktier.session import repair, splice

# family -> how many examples a run tries; the first ones are those of the issue, the others have a trait of their own
HUGGING_FACE = (
    "gpt2",
    "llama3",
    "qwen3",
    "gptoss",
    "deepseek_v3",
    "roberta",
    "neox",
    "gpt2_prefix",
    "falcon",
    "command_r",
)
RANKS = ("cl100k", "o200k", "kimi_k2")
NASTY = [
    *("1", "12", "123", "1234567", "\u06f7", "\u00b2", "\u0661\u0662"),
    *(" ", "  ", "   ", "\n", "\r", "\r\n", "\n\n", "\t", "\u00a0", "\u3000", "\x85", "\x0b", " \n ", "/\n", ".\n/"),
    *("'", "'s", "'S", "'\u017f", "'ll", "'re", "\u2019s", "'v", "e", "d"),
    *(
        "a",
        "b",
        " the",
        " pipe",
        "line",
        " doInBackgroun",
        "AB",
        "c",
        "HTTPServer",
        "\u00e9",
        "\u01c5",
        "\u02b0",
        "\u212a",
    ),
    *(
        "\u4e2d",
        "\u6587",
        "\u3042",
        "\u30ab\u3099",
        "\u30fb",
        "\u0e40\u0e2b\u0e47",
        "\ud55c",
        "\u1100",
        "\u1161",
        "\u11a8",
    ),
    *("e\u0301", "\u0301", "\u0315", "\u0327", "a\u030a", "\u09c7", "\u09be", "\u212b", "\ufb01", "\u0344"),
    *(
        "<|im_en",
        "d|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|endof",
        "text|>",
        "<|",
        "|>",
        "<",
        ">",
        "<mask>",
        "<ma",
        "sk>",
    ),
    *(
        "\x00",
        ".",
        "...",
        "!",
        "\u2014",
        "_",
        "-",
        "\U0001f600",
        "\U0001f468\u200d\U0001f469",
        "\ufffd",
        "$",
        "=",
        "\u0338",
    ),
]
HALVES = ["\ud83e", "\uddea"]


@functools.cache
def pair(name: str):
    """(our tokenizer, the reference's encode) of a family."""
    if name in RANKS:
        encoding = families.encoding(name)
        return toktier.load(encoding), lambda text: encoding.encode(text, allowed_special="all")
    reference = families.tokenizer(name)
    return toktier.load(reference), lambda text: reference.encode(text, add_special_tokens=False).ids


def fragments(name: str) -> list[str]:
    """The characters that hurt, with the family's own added tokens and halves of them."""
    tok, _ = pair(name)
    own = [a.content for a in tok.spec.added]
    halves = [part for c in own for part in (c[: len(c) // 2], c[len(c) // 2 :]) if part]
    return NASTY + own + halves + (HALVES if name in RANKS else [])


def applied(ids: list[int], patch) -> list[int]:
    return ids[: patch.start] + patch.ids.tolist() + ids[patch.start + patch.removed :]


class Machine(RuleBasedStateMachine):
    """Changes in any order; `family` and `mode` are set by the subclass."""

    family = ""
    mode = "certified"
    piece = st.nothing()

    def __init__(self):
        super().__init__()
        self.tok, self.reference = pair(self.family)
        self.session, self.text, self.ids = None, "", []
        self.fork = None

    @initialize(data=st.data())
    def open(self, data):
        self.text = data.draw(self.piece)
        self.session = self.tok.session(self.text, special_tokens="parse", repair=self.mode)
        self.ids = self.session.ids.tolist()

    def changed(self, patch, text):
        self.ids, self.text = applied(self.ids, patch), text

    @rule(data=st.data())
    def append(self, data):
        text = data.draw(self.piece)
        self.changed(self.session.append(text), self.text + text)

    @rule(data=st.data())
    def edit(self, data):
        start = data.draw(st.integers(0, len(self.text)))
        stop = data.draw(st.integers(start, min(len(self.text), start + 12)))
        text = data.draw(self.piece)
        self.changed(self.session.edit(start, stop, text), self.text[:start] + text + self.text[stop:])

    @rule(data=st.data())
    def update(self, data):
        start = data.draw(st.integers(0, len(self.text)))
        text = self.text[:start] + data.draw(self.piece) + self.text[start + data.draw(st.integers(0, 9)) :]
        self.changed(self.session.update(text), text)

    @rule(data=st.data())
    def truncate(self, data):
        chars = data.draw(st.integers(max(0, len(self.text) - 15), len(self.text)))
        self.changed(self.session.truncate(chars), self.text[:chars])

    @rule(stay=st.booleans())
    def branch(self, stay):
        other = self.session.fork()
        if not stay:
            self.session, other = other, self.session
        self.fork = other, self.text, list(self.ids)

    @precondition(lambda self: self.fork)
    @rule(data=st.data())
    def go_back(self, data):
        self.session, self.text, self.ids = self.fork
        self.fork = None

    @rule()
    def reopen(self):
        self.session = toktier.Session.from_bytes(self.tok, self.session.to_bytes())

    @invariant()
    def equals_a_fresh_encode(self):
        if self.session is None:
            return
        want = list(self.reference(self.text))
        assert self.session.ids.tolist() == want
        assert self.ids == want
        assert self.session.text == self.text
        assert self.session.canonical


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks and windows so small that short texts have many seams."""
    monkeypatch.setattr(splice, "CHARS", 12)
    monkeypatch.setattr(splice, "SMALL", 4)
    monkeypatch.setattr(repair, "WINDOW", 16)


@pytest.mark.parametrize("family", [*HUGGING_FACE, *RANKS])
@pytest.mark.parametrize("mode", ["certified", "checked"])
def test_any_changes(family, mode, small_chunks):
    piece = st.lists(st.sampled_from(fragments(family)), max_size=6).map("".join)
    machine = type("Machine", (Machine,), {"family": family, "mode": mode, "piece": piece})
    count = 8 if mode == "certified" else 4
    run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=25, deadline=None))


@pytest.mark.parametrize("family", ["llama3", "qwen3", "o200k"])
def test_real_text_with_edits_everywhere(family, corpus):
    tok, reference = pair(family)
    rng = random.Random(family)
    text = "".join(corpus[name] for name in ("english", "code", "chinese", "hard", "chat"))[:9000]
    session, ids = tok.session(text, special_tokens="parse"), None
    pieces = fragments(family)
    for k in range(120):
        start = rng.randrange(len(text) + 1)
        stop = min(len(text), start + rng.choice([0, 1, 1, 5, 60]))
        new = "".join(rng.choices(pieces, k=rng.choice([0, 1, 3])))
        ids = session.ids.tolist()
        patch = session.edit(start, stop, new)
        text = text[:start] + new + text[stop:]
        assert applied(ids, patch) == session.ids.tolist()
        if k % 4 == 0:
            assert session.ids.tolist() == list(reference(text))
    assert session.ids.tolist() == list(reference(text))
    assert session.explain()["counts"]["full"] <= 2


def test_ends_and_token_at_are_those_of_encode_spans(corpus):
    for family in ("o200k", "qwen3", "gpt2_prefix"):
        tok, _ = pair(family)
        session = tok.session("", special_tokens="parse")
        for name in ("english", "vietnamese_nfd", "hard"):
            session.append(corpus[name])
        session.edit(100, 110, "e\u0301\u0315 \u0301")
        spans = tok.encode_spans(session.text, special_tokens="parse")
        assert np.array_equal(session.ends, spans.ends)
        assert not session.ends.flags.writeable
        if family == "o200k":
            for char in range(0, len(session.text), 97):
                byte = len(session.text[:char].encode())
                assert session.token_at(char) == int(np.searchsorted(spans.ends, byte, "right"))
        assert session.token_at(0) == 0


def test_one_character_can_undo_six_ids_and_the_patch_says_so():
    tok, reference = pair("o200k")
    session = tok.session("the build pipe", special_tokens="parse")
    before = session.ids.tolist()
    patch = session.append("line")
    assert applied(before, patch) == list(reference("the build pipeline"))
    assert patch.start == len(before) - patch.removed


def test_a_mark_reaches_back_without_bound():
    tok, reference = pair("qwen3")
    text = "x e" + "\u0315" * 400
    session = tok.session(text)
    session.append("\u0301")
    assert session.ids.tolist() == list(reference(text + "\u0301"))


def test_a_long_literal_typed_in_parts():
    import tokenizers

    reference = tokenizers.Tokenizer.from_str(families.tokenizer_json("llama3"))
    literal = "[[SECTION::tool-output::begin::v2026.11::channel=7::do-not-split-me]]"
    reference.add_tokens([tokenizers.AddedToken(literal, normalized=False)])
    tok = toktier.load(reference)
    session, text = tok.session(""), ""
    for part in ("log ", literal[:17], literal[17:40], literal[40:-1], "]", "\nok [[SECTION::"):
        session.append(part)
        text += part
        assert session.ids.tolist() == reference.encode(text, add_special_tokens=False).ids
    session.truncate(4 + len(literal) - 1)
    assert session.ids.tolist() == reference.encode(text[: 4 + len(literal) - 1], add_special_tokens=False).ids


def test_halves_of_a_character_meet_in_ranks_and_are_refused_elsewhere():
    tok, reference = pair("cl100k")
    session = tok.session("hi \ud83e")
    session.append("\uddea")
    assert session.ids.tolist() == list(reference("hi \ud83e\uddea"))
    tok, _ = pair("gpt2")
    session = tok.session("hi ")
    before = session.ids.tolist(), session.text, session.explain()
    with pytest.raises(InputError, match="surrogate"):
        session.append("\ud83e")
    assert (session.ids.tolist(), session.text, session.explain()) == before


def test_forbidden_literal_completed_by_an_append_leaves_the_session_as_it_was():
    tok, reference = pair("o200k")
    session = tok.session("say <|endof", special_tokens="forbid")
    ids = session.ids.tolist()
    with pytest.raises(SpecialTokenError):
        session.append("text|> now")
    assert session.ids.tolist() == ids
    assert session.text == "say <|endof"
    session.append("text")
    assert session.ids.tolist() == list(reference("say <|endoftext"))


@pytest.mark.parametrize("special_tokens", ["parse", "text"])
def test_special_tokens_as_in_encode(special_tokens):
    for family in ("o200k", "llama3", "roberta"):
        tok, _ = pair(family)
        session, text = tok.session("", special_tokens=special_tokens), ""
        for part in ("a <|endof", "text|> <|begin_of_text|", ">b <ma", "sk>  <mask> ", " c"):
            session.append(part)
            text += part
            assert session.ids.tolist() == tok.encode(text, special_tokens=special_tokens).tolist()


def test_a_continuation_gets_no_second_bos():
    for family in ("llama3", "roberta", "o200k"):
        tok, _ = pair(family)
        options = {"special_tokens": "parse", "add_special_tokens": True}
        session, text, ids = tok.session("", **options), "", tok.encode("", **options).tolist()
        for part in ("Hello", " there", "\n\nBye", "", " e\u0301", " now"):
            ids = applied(ids, session.append(part))
            text += part
            assert session.ids.tolist() == ids == tok.encode(text, **options).tolist()
            assert len(session.ends) == len(session) == len(ids)
        text = text[:3] + "XY" + text[9:]
        ids = applied(ids, session.update(text))
        assert session.ids.tolist() == ids == tok.encode(text, **options).tolist()
        copy = toktier.Session.from_bytes(tok, session.to_bytes())
        copy.append("!")
        assert copy.ids.tolist() == tok.encode(text + "!", **options).tolist()
        given = tok.session_from_ids(ids[1:3], **options)
        assert given.append(" x").ids.tolist() == tok.encode(" x").tolist()
        assert applied([], tok.session("a", **options).last_patch) == tok.encode("a", **options).tolist()


def test_a_tokenizer_of_the_reference_has_sessions_too():
    import tokenizers

    reference = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    reference.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tok = toktier.load(reference)
    session = tok.session("a b")
    session.append(" a x")
    assert session.ids.tolist() == [1, 2, 1, 0]
    assert "reference" in session.explain()["why_full"]
    assert session.explain()["last"]["path"] == "full"
    with pytest.raises(EngineError, match="places"):
        session.ends  # noqa: B018
    session.truncate(0)
    assert session.ids.tolist() == []
    copy = toktier.Session.from_bytes(tok, session.to_bytes())
    copy.append("b")
    assert copy.ids.tolist() == [2]
    assert tok.session_from_ids([1, 2]).ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda s: s.append(b"x"), InputTypeError, "text"),
        (lambda s: s.append(None), InputTypeError, "text"),
        (lambda s: s.edit(-1, 2, "x"), InputError, "start=-1"),
        (lambda s: s.edit(1, 99, "x"), InputError, "stop=99"),
        (lambda s: s.edit(3, 2, "x"), InputError, "stop=2"),
        (lambda s: s.edit("1", 2, "x"), InputTypeError, "start"),
        (lambda s: s.truncate(6), InputError, "chars=6"),
        (lambda s: s.truncate(1.0), InputTypeError, "chars"),
        (lambda s: s.token_at(5), InputError, "char=5"),
        (lambda s: s.update(7), InputTypeError, "text"),
        (lambda s: s.extend_ids("12"), InputTypeError, "ids"),
        (lambda s: s.extend_ids([1.5]), InputTypeError, "ids"),
        (lambda s: s.extend_ids([3, -1]), InputError, "ids"),
        (lambda s: s.extend_ids([3, 10**8]), InputError, "ids"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(call, error, named):
    tok, _ = pair("o200k")
    session = tok.session("hello")
    ids = session.ids.tolist()
    with pytest.raises(error, match=named):
        call(session)
    assert (session.text, session.ids.tolist()) == ("hello", ids)


def test_options_that_are_not_known():
    tok, _ = pair("o200k")
    for options in ({"repair": "hope"}, {"special_tokens": "maybe"}, {"engine": "warp"}):
        with pytest.raises(InputError, match=next(iter(options))):
            tok.session("x", **options)


def test_an_error_in_the_middle_of_a_repair_changes_nothing(monkeypatch):
    tok, reference = pair("llama3")
    session = tok.session("one two three")
    changes = ((2, 5, "xyz"), (8, 13, "seven"))  # the second puts as many ids in as it takes out
    places = ((session._engine, "encode"), (splice, "build"), (type(session._chunks), "replace"))
    for (target, name), change in itertools.product(places, changes):

        def fail(*args, **options):
            raise MemoryError("no more")

        with monkeypatch.context() as patched:
            patched.setattr(target, name, fail)
            with pytest.raises(MemoryError):
                session.edit(*change)
        assert session.text == "one two three"
        assert session.ids.tolist() == list(reference("one two three"))
    session.append(" four")
    assert session.ids.tolist() == list(reference("one two three four"))


def test_sessions_do_not_pickle_and_are_not_copied_but_forked():
    tok, _ = pair("o200k")
    session = tok.session("the build pipe")
    for call in (pickle.dumps, lambda s: pickle.dumps([s], protocol=0)):
        with pytest.raises(InputTypeError, match=r"session\.to_bytes\(\), and Session\.from_bytes\(tokenizer, data\)"):
            call(session)
    for call in (copy.copy, copy.deepcopy, lambda s: copy.deepcopy({"a": s})):
        with pytest.raises(InputTypeError, match=r"session\.fork\(\)"):
            call(session)
    assert session.fork().update("another").ids.tolist() == tok.encode("another").tolist()
    assert session.text == "the build pipe"


def test_closed_sessions_say_so():
    tok, _ = pair("o200k")
    session = tok.session("hello")
    session.close()
    for call in (lambda: session.append("x"), lambda: session.ids, lambda: session.text, session.fork):
        with pytest.raises(SessionClosedError):
            call()


def test_an_interrupt_behind_the_change_takes_it_back(monkeypatch):
    session = toktier.load("o200k_base").session("The pipe")
    seen = []
    session._on_change = lambda session, patch: seen.append(patch)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(session, "_note", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.append("line")
    assert session.text == "The pipe"
    assert not seen
    assert session.append("line").ids.tolist() == [29412]
    assert len(seen) == 1
