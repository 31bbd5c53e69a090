"""Where ids differ from those of the text: nothing is missed, and what lies between is equal."""

import doctest
import itertools
import json
import random

import families
import numpy as np
import pytest
import tokenizers

import toktier
from toktier.errors import EngineError, InputError
from toktier.session import drift
from toktier.session.drift import differences


@pytest.fixture(scope="module")
def tok():
    return toktier.load(families.tokenizer("qwen3"))


def put_in(given, found):
    """The given ids with each stretch replaced by the fresh ones."""
    out, at = [], 0
    for d in found:
        assert given[d.start : d.start + len(d.given)] == d.given.tolist()
        out += given[at : d.start]
        assert d.fresh_start == len(out)
        out += d.fresh.tolist()
        at = d.start + len(d.given)
    return out + given[at:]


def respelled(tok, text, rng):
    """The text in tokens that the tokenizer would not choose: cut at random places, each part encoded alone."""
    cuts = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(rng.randint(0, 12)))})
    return [i for a, b in itertools.pairwise(cuts) for i in tok.encode(text[a:b]).tolist()]


def test_every_difference_is_found_and_no_more(tok, corpus):
    rng = random.Random(0)
    seen = 0
    for text in corpus.values():
        text = text[:300]
        fresh = tok.encode(text).tolist()
        given = respelled(tok, text, rng)
        if tok.decode(given) != tok.decode(fresh):  # NFC reads a mark differently without what stands before it
            continue
        found = differences(tok, given, fresh)
        seen += len(found)
        assert put_in(given, found) == fresh
        assert bool(found) == (given != fresh)
        for d in found:
            assert d.data == tok.decode_bytes(d.given) == tok.decode_bytes(d.fresh)
            inner = [set(np.cumsum([len(tok.token_bytes(i)) for i in ids])) for ids in (d.given[:-1], d.fresh[:-1])]
            assert not inner[0] & inner[1]  # no place inside where both have a token's end
    assert seen > 20


def test_a_session_says_where_its_ids_drift(tok):
    session = tok.session("the build pipe")
    session.extend_ids(tok.encode("line"))
    assert not session.canonical
    fork = session.fork()
    fork.retokenize()
    (found,) = differences(tok, session.ids, fork.ids)
    assert b" pipeline".endswith(found.data)
    assert put_in(session.ids.tolist(), [found]) == fork.ids.tolist()
    assert differences(tok, fork.ids, fork.ids) == []
    assert session.ids.tolist() != fork.ids.tolist() == tok.encode(session.text).tolist()


def test_bytes_that_are_no_text_are_differences_of_their_own(tok):
    half = tok.encode("é").tolist()
    byte = next(i for i in range(256) if tok.token_bytes(i) == b"\xc3")
    given = [*tok.encode("one").tolist(), byte, *tok.encode(" three").tolist()]
    fresh = tok.encode(tok.decode(given)).tolist()
    (found,) = differences(tok, given, fresh)
    assert found.data == b"\xc3"
    assert put_in(given, [found]) == fresh
    assert differences(tok, half, half) == differences(tok, [], []) == []
    assert [d.given.tolist() for d in differences(tok, half, [])] == [half]


def test_random_ids_spell_halves_of_characters(tok):
    rng = random.Random(1)
    size, several = tok.spec.n_ids, 0
    for _ in range(100):
        given = [rng.choice((rng.randrange(128, 256), rng.randrange(size))) for _ in range(rng.randint(1, 40))]
        fresh = tok.encode(tok.decode(given)).tolist()
        found = differences(tok, given, fresh)
        assert put_in(given, found) == fresh
        several += len(found) > 1
        for d in found:
            if tok.decode(given) == tok.decode(fresh):
                assert d.data.decode("utf-8", "replace") == tok.decode(d.fresh)
    assert several > 50


def test_other_texts_are_one_stretch(tok):
    given, fresh = (tok.encode(text).tolist() for text in ("one two three", "one 2 three"))
    (found,) = differences(tok, given, fresh)
    assert (tok.decode(found.given), tok.decode(found.fresh)) == (" two", " 2") or put_in(given, [found]) == fresh
    assert found.data == tok.decode_bytes(found.given)


def test_tokens_without_bytes_are_differences_too(tok):
    padded = tok.vocab_size  # an id of the model's padded output, which decodes to nothing
    a = tok.encode("one two").tolist()
    for given in ([padded, *a], [*a, padded], [a[0], padded, *a[1:]], [padded]):
        found = differences(tok, given, [i for i in given if i != padded])
        assert put_in(given, found) == [i for i in given if i != padded]
        assert len(found) == 1


def test_the_example_is_what_happens():
    result = doctest.testmod(drift)
    assert result.attempted >= 4
    assert result.failed == 0


def test_what_is_refused(tok):
    with pytest.raises(InputError, match=r"ids\[1\]"):
        differences(tok, [1, 10**7], [1])


def test_a_decoder_that_looks_at_neighbours_is_refused():
    value = json.loads(families.tokenizer_json("gpt2", 600))
    value["decoder"] = {"type": "Sequence", "decoders": [value["decoder"], {"type": "Fuse"}]}
    other = toktier.load(tokenizers.Tokenizer.from_str(json.dumps(value)))
    with pytest.raises(EngineError, match="no bytes of their own"):
        differences(other, [1], [2])
