"""A session that forbids special tokens: the error says where in its text one would stand, and nothing has changed."""

from __future__ import annotations

import pickle
import random
import re

import numpy as np
import pytest
from test_session import pair

from toktier.errors import SpecialTokenError
from toktier.session import SessionStore

END = "<|endoftext|>"
SAYS = re.compile(r"the special token '<\|endoftext\|>' at character (\d+), which it forbids: make the session with")
PROSE = "some words, and others; " * 1_000


def at(error):
    """The place that an error tells, if it tells the way out that a session has."""
    assert error.value.literal == END
    assert "an argument of tok.session() and SessionStore(), not of a change" in str(error.value)
    return int(SAYS.search(str(error.value))[1])


def refused(session, change, text):
    """Where `change`, which would make the session's text `text`, says that the special token is."""
    before = session.ids.copy(), session.n_chars, session.explain(), session.nbytes
    with pytest.raises(SpecialTokenError) as error:
        change()
    assert np.array_equal(before[0], session.ids)
    assert before[1:3] == (session.n_chars, session.explain())
    assert session.nbytes == before[3] or session._chunks.n_given  # whose chunks may lie in two parts now
    place = at(error)
    assert text[place : place + len(END)] == END
    return place


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("o200k", {}),
        ("o200k", {"repair": "checked"}),
        ("o200k", {"engine": "reference"}),
        ("gpt2", {"special_tokens": "forbid"}),
        ("qwen3", {"special_tokens": "forbid"}),
        ("gpt2", {"special_tokens": "forbid", "engine": "reference"}),
    ],
)
def test_the_place_is_one_of_the_whole_text(family, options):
    session = pair(family)[0].session(PROSE, **options)
    n = len(PROSE)
    assert refused(session, lambda: session.append("and then " + END), PROSE + "and then " + END) == n + 9
    for start, stop in ((0, 0), (0, 5), (12_345, 12_345), (12_345, 12_400), (n - 3, n), (n, n)):
        new = PROSE[:start] + "a " + END + PROSE[stop:]
        assert refused(session, lambda: session.edit(start, stop, "a " + END), new) == start + 2  # noqa: B023
        assert refused(session, lambda: session.update(new), new) == start + 2  # noqa: B023


@pytest.mark.parametrize("options", [{}, {"repair": "checked"}, {"engine": "reference"}])
def test_it_may_lie_across_the_seam_or_be_laid_bare(options):
    tok, _ = pair("o200k")
    for cut in range(1, len(END)):
        session = tok.session(PROSE + END[:cut], **options)
        whole = PROSE + END + " on"
        assert refused(session, lambda: session.append(END[cut:] + " on"), whole) == len(PROSE)  # noqa: B023
        session.append("\n" + END[cut:] + PROSE)
        seam = len(PROSE) + cut
        gone = PROSE + END + PROSE
        assert refused(session, lambda: session.edit(seam, seam + 1, ""), gone) == len(PROSE)  # noqa: B023


@pytest.mark.parametrize("size", [10, 24_000])
def test_without_the_text(size):
    session = pair("o200k")[0].session(PROSE[:size], keep_text=False)
    text = PROSE[:size]
    assert refused(session, lambda: session.append("then " + END), text + "then " + END) == size + 5
    session.append("<|endof")
    text += "<|endof"
    assert refused(session, lambda: session.append("text|>"), text + "text|>") == size
    rng = random.Random(7)
    for start in {0, size // 2, size, *(rng.randrange(size) for _ in range(4))}:
        new = text[:start] + END + text[start:]
        assert refused(session, lambda: session.update(new), new) == start  # noqa: B023
    session.append(" on")
    assert session.ids.tolist() == pair("o200k")[1](text + " on")


def test_given_ids_keep_theirs_and_are_not_what_is_meant():
    tok, _ = pair("o200k")
    session = tok.session("say ")
    given = tok.encode(f"<|endof and {END}<|endof", special_tokens="parse")
    session.extend_ids(given)
    text = session.text
    assert refused(session, lambda: session.append(f"text|>{END}"), text + f"text|>{END}") == len(text) + 6
    first = text.index(END)
    cut = text[: first + 7] + "text|> " + END + text[first + 9 :]  # the given token becomes text again
    assert refused(session, lambda: session.edit(first + 7, first + 9, "text|> " + END), cut) == first
    for look in (session.retokenize, lambda: session.canonical):
        assert refused(session, look, text) == first


def test_a_new_session_says_it_likewise(tmp_path):
    tok, _ = pair("o200k")
    for make in (tok.session, lambda text: SessionStore(tok).get_or_create("a", text)):
        with pytest.raises(SpecialTokenError, match=r"^text holds the special token") as error:
            make(PROSE + END)
        assert at(error) == len(PROSE)
    with SessionStore(tok, path=tmp_path / "s.db") as store:
        session = store.get_or_create("a", PROSE)
        with pytest.raises(SpecialTokenError, match=r"^the session's text would hold") as error:
            store.get_or_create("a", PROSE + END)
        assert at(error) == len(PROSE)
        assert store.get("a").text == session.text == PROSE


def test_where_the_token_is_spelt_otherwise_the_change_is_named():
    import tokenizers

    import toktier

    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[], unk_token="a"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.add_special_tokens([tokenizers.AddedToken("stop", special=True, normalized=True)])
    session = toktier.load(made).session("aaa", special_tokens="forbid")
    with pytest.raises(SpecialTokenError, match="'stop' at or beside characters 3 to 7, which it forbids"):
        session.append("STOP")
    assert session.text == "aaa"


def test_the_literal_survives_a_pickle():
    with pytest.raises(SpecialTokenError) as error:
        pair("o200k")[0].encode(END)
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.literal) == (str(error.value), END)
