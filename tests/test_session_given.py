"""Ids that a model gave stay as they are; what follows is encoded behind them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from test_session import applied, pair

from toktier.errors import InputError
from toktier.session import Session


def test_given_ids_stay_and_say_whether_they_are_the_texts_own():
    tok, reference = pair("o200k")
    own = list(reference(" ballet and"))
    session = tok.session_from_ids(own)
    assert session.canonical
    assert session.text == " ballet and"
    other = [t for c in " ballet" for t in reference(c)]
    assert other != list(reference(" ballet"))
    session = tok.session_from_ids(other)
    assert not session.canonical
    patch = session.append("s")
    assert (patch.start, patch.removed, patch.ids.tolist()) == (len(other), 0, list(reference("s")))
    assert session.ids.tolist() == other + list(reference("s"))
    patch = session.retokenize()
    assert session.ids.tolist() == list(reference(" ballets"))
    assert applied(other + list(reference("s")), patch) == session.ids.tolist()
    assert session.canonical


def test_ids_that_are_canonical_alone_may_not_be_with_what_follows():
    tok, reference = pair("o200k")
    session = tok.session_from_ids(list(reference(" pipe")))
    assert session.canonical
    session.append("line")
    assert session.canonical == (session.ids.tolist() == list(reference(" pipeline")))


@pytest.mark.parametrize("family", ["o200k", "llama3", "qwen3", "gptoss", "cl100k"])
def test_random_ids_then_text_then_changes(family):
    """Most random ids are no whole characters; still none of them moves unless a change cuts it apart."""
    tok, reference = pair(family)
    rng = random.Random(family)
    size = tok.spec.n_ids
    for _ in range(60):
        given = [rng.randrange(size) for _ in range(rng.randint(1, 64))]
        session = tok.session_from_ids(given, special_tokens="parse")
        session.append(" and 12")
        session.append("34 end")
        assert session.ids.tolist() == given + list(reference(" and 1234 end"))
        assert session.text.endswith(" and 1234 end")
        before = session.text
        session.extend_ids(given[:5])
        session.append("'s")
        assert session.ids.tolist() == given + list(reference(" and 1234 end")) + given[:5] + list(reference("'s"))
        assert len(session.ends) == len(session)
        assert (np.diff(session.ends) >= 0).all()
        session.truncate(len(before))
        assert session.ids.tolist() == given + list(reference(" and 1234 end"))
        copy = Session.from_bytes(tok, session.to_bytes())
        assert (copy.text, copy.ids.tolist(), copy.canonical) == (session.text, session.ids.tolist(), session.canonical)
        ids, text = session.ids.tolist(), session.text
        low, high = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        patch = session.edit(low, high, "new 1")
        assert applied(ids, patch) == session.ids.tolist()
        assert session.text == text[:low] + "new 1" + text[high:]
        session.retokenize()
        assert session.ids.tolist() == list(reference(session.text))


def test_a_change_between_two_given_ids_moves_neither():
    tok, reference = pair("llama3")
    given = [t for c in "one two three" for t in reference(c)]
    session = tok.session_from_ids(given)
    session.edit(4, 4, "XY")
    assert session.ids.tolist() == given[:4] + list(reference("XY")) + given[4:]
    session.truncate(9)
    assert session.ids.tolist() == given[:4] + list(reference("XY")) + given[4:7]


def test_a_given_token_that_a_change_cuts_becomes_text_again():
    tok, reference = pair("llama3")
    one = list(reference(" the"))
    assert len(one) == 1
    session = tok.session_from_ids(one * 3)
    session.truncate(10)
    assert session.text == " the the t"
    assert session.ids.tolist() == one * 2 + list(reference(" t"))


def test_nothing_at_all_is_refused_by_name():
    tok, _ = pair("o200k")
    with pytest.raises(InputError, match="ids"):
        tok.session_from_ids([10**7])
    assert tok.session_from_ids([]).text == ""
