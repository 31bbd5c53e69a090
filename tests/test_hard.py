"""Hard inputs, small: the same ids as the reference from every engine, alone and between other text."""

import families
import pytest
import tiktoken
import tokenizers

import toktier
from toktier.testing.hard import FULL, make

HOST, DEVICE = 60_000, 9_000  # bytes


@pytest.fixture(scope="module", params=["gpt2", "llama3", "qwen3", "cl100k"])
def both(request, tmp_path_factory):
    """A tokenizer and its reference's ids of a text."""
    if request.param == "cl100k":
        native = families.encoding("cl100k")
        assert isinstance(native, tiktoken.Encoding)
        return toktier.load(native), native.encode_ordinary
    path = tmp_path_factory.mktemp("hard") / "tokenizer.json"
    path.write_text(families.tokenizer_json(request.param), encoding="utf-8")
    native = tokenizers.Tokenizer.from_file(str(path))
    return toktier.load(path), lambda text: native.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", sorted(FULL))
def test_the_host_engine_is_exact(both, name):
    tokenizer, reference = both
    for text in (make(name, HOST), "It's " + make(name, 3001) + "\n12 " + make(name, 2002) + "end"):
        assert tokenizer.encode(text, engine="host", special_tokens="text").tolist() == reference(text)


def test_the_device_is_exact(both):
    tokenizer, reference = both
    for name in sorted(FULL):
        text = "It's " + make(name, DEVICE) + "\n12 " + make(name, 2002) + "end"
        assert tokenizer.encode(text, engine="device", special_tokens="text").tolist() == reference(text), name


def test_pieces_and_sessions_are_exact(both):
    tokenizer, reference = both
    for name in sorted(FULL):
        text = make(name, 3000)
        starts = tokenizer.piece_starts(text, engine="host")
        assert starts.tolist() == tokenizer.core.reference.piece_starts(text).tolist(), name
        session = tokenizer.session(text, special_tokens="text")
        for change in (text[:7], "x", " ", text[:300]):
            session.append(change)
            text += change
            assert session.ids.tolist() == reference(text), name
        session.edit(50, 53, "z")
        assert session.ids.tolist() == reference(text[:50] + "z" + text[53:]), name
