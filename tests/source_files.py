"""Small tokenizer files for tests of sources, and the fixtures that keep those tests to themselves."""

import json
import socket

import pytest
from families import tokenizer_json

SMALL = 600
FLAGS = ("special", "normalized", "lstrip", "rstrip", "single_word")
WHOLE = tokenizer_json("gpt2", SMALL)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKTIER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def changed(**parts):
    """A small tokenizer.json: those of its model's fields, or of its own, that are named are replaced."""
    value = json.loads(tokenizer_json("gpt2", SMALL))
    for key, part in parts.items():
        (value if key in value else value["model"])[key] = part
    return value


def write(folder, value, name="tokenizer.json"):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def live(native):
    return {
        (i, t.content, t.special, t.normalized, t.lstrip, t.rstrip, t.single_word)
        for i, t in native.get_added_tokens_decoder().items()
    }
