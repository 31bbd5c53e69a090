"""Sessions that keep no text: the same ids, patches and counts as those that do."""

from __future__ import annotations

import random

import numpy as np
import pytest
from test_session import applied, fragments, pair, small_chunks  # noqa: F401

import toktier
from toktier.errors import EngineError, InputError, SpecialTokenError, TextNotKeptError
from toktier.session.forgotten import KEPT, Forgotten


def mutated(rng: random.Random, text: str, pieces: list[str]) -> str:
    """The text with one to three stretches replaced, somewhere."""
    for _ in range(rng.choice([1, 1, 1, 3])):
        start = rng.randint(0, len(text))
        stop = min(len(text), start + rng.choice([0, 1, 3, 40]))
        text = text[:start] + "".join(rng.choices(pieces, k=rng.randint(0, 4))) + text[stop:]
    return text


@pytest.mark.parametrize("family", ["llama3", "qwen3", "gptoss", "deepseek_v3", "falcon", "gpt2_prefix", "cl100k"])
def test_any_updates_and_appends(family, small_chunks):  # noqa: F811
    tok, reference = pair(family)
    pieces = fragments(family)
    for seed in range(4):
        rng = random.Random(seed)
        text = "".join(rng.choices(pieces, k=rng.choice([0, 3, 40])))
        session = tok.session(text, special_tokens="parse", keep_text=False)
        kept = tok.session(text, special_tokens="parse")
        ids = session.ids.tolist()
        for step in range(60):
            if rng.random() < 0.4:
                more = "".join(rng.choices(pieces, k=rng.randint(0, 6)))
                text, patch = text + more, session.append(more)
            else:
                text = mutated(rng, text, pieces) if rng.random() < 0.9 else text[: rng.randint(0, len(text))]
                patch = session.update(text)
            kept.update(text)
            ids = applied(ids, patch)
            assert ids == session.ids.tolist() == list(reference(text)), (seed, step)
            assert session.ends.tolist() == kept.ends.tolist()
            assert session.n_chars == len(text)
            chunks = session._chunks.chunks
            assert all(isinstance(c.text, Forgotten) for c in chunks[:-KEPT])
            assert sum(len(c.text) for c in chunks) == len(text)
            if rng.random() < 0.1:
                session = session.fork()


def test_an_update_far_back_reads_the_few_chunks_around_it(corpus):
    tok = toktier.load("o200k_base")
    text = "\n".join(corpus.values()) * 4
    session = tok.session(text, special_tokens="text", keep_text=False)
    before = session.explain()["counts"]["window_chars"]
    new = text[: len(text) // 3] + " in the middle " + text[len(text) // 3 :]
    patch = session.update(new)
    assert session.explain()["last"]["path"] == "certified"
    assert session.explain()["counts"]["window_chars"] - before < 4 * 4096
    assert len(patch.ids) + patch.removed < 100
    assert session.ids.tolist() == tok.encode(new, special_tokens="text").tolist()
    assert not np.array_equal(session.ids, tok.encode(text, special_tokens="text"))


def test_memory_is_what_the_ids_take(corpus):
    tok = toktier.load("o200k_base")
    text = "\n".join(corpus.values()) * 12
    with_text, without = (
        tok.session(text, special_tokens="text"),
        tok.session(text, special_tokens="text", keep_text=False),
    )
    assert without.nbytes < with_text.nbytes - len(text) + 40_000


def test_what_needs_the_text_says_so_and_changes_nothing(corpus):
    tok = toktier.load("o200k_base")
    text = "\n".join(corpus.values()) * 4
    session = tok.session(text, special_tokens="text", keep_text=False)
    ids = session.ids.copy()
    for call in (
        lambda: session.text,
        lambda: session.edit(5, 9, "x"),
        lambda: session.truncate(100),
        lambda: session.token_at(10),
        session.to_bytes,
        session.retokenize,
        lambda: session.extend_ids([1]),
    ):
        with pytest.raises(TextNotKeptError, match="keep"):
            call()
        assert np.array_equal(session.ids, ids)
    assert session.canonical
    assert session.append("more").start >= len(ids) - 2
    with pytest.raises(EngineError, match="repair='checked'"):
        tok.session("a", keep_text=False, repair="checked")
    with pytest.raises(EngineError, match="keep_text=False"):
        tok.session("a", keep_text=False, engine="reference")


def test_a_store_of_sessions_without_text(tmp_path, corpus):
    tok = toktier.load("o200k_base")
    text = "\n".join(corpus.values())
    store = toktier.SessionStore(tok, keep_text=False, special_tokens="text")
    store.get_or_create("a", text)
    session = store.get_or_create("a", text + " and more")
    assert session.ids.tolist() == tok.encode(text + " and more", special_tokens="text").tolist()
    assert store.stats()["hits"] == 1
    with pytest.raises(InputError, match="path="):
        toktier.SessionStore(tok, keep_text=False, path=tmp_path / "s.db")


def test_a_forgotten_text_equals_itself_alone():
    gone = Forgotten("ab\ud800")
    assert gone == "ab\ud800"
    assert gone != "abc"
    assert gone != "ab"
    assert len(gone) == 3
    with pytest.raises(TextNotKeptError):
        gone[0:1]


def test_an_update_that_is_refused_leaves_no_text_behind():
    tok = toktier.load("o200k_base")
    text = "some words, and others. " * 4_000
    session = tok.session(text, keep_text=False)
    before, ids = session.nbytes, session.ids.copy()
    for at in (0, 30_000, 70_000):
        with pytest.raises(SpecialTokenError):
            session.update(text[:at] + "<|endoftext|>" + text[at:])
        assert session.nbytes == before
        assert np.array_equal(session.ids, ids)
