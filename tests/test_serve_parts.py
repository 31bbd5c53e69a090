"""Parts of the service: what goes over the wire, who may ask, and how the tier's refusals reach a client."""

import asyncio
import contextlib
import json
import logging
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import families
import httpx
import numpy as np
import pytest
import tokenizers

import toktier
from toktier.errors import InputError, MissingExtraError
from toktier.serve import Settings, auth, create_app, logs, run, wire
from toktier.serve.client import _common
from toktier.serve.strings import token_strings
from toktier.tier import Tier


@pytest.mark.parametrize("n", [0, 1, 255, 256, 1000, 65536, 65537, 200_000])
@pytest.mark.parametrize("top", [1, 10, 100, 200_019, 2**31])
def test_ids_as_json_are_what_json_makes_of_them(n, top):
    ids = np.random.default_rng(n + top).integers(0, top, n).astype(np.int32)
    ids[:: max(1, n // 3)] = 0
    written = wire.ids_json(ids)
    assert json.loads(written) == ids.tolist()
    assert written == json.dumps(ids.tolist(), separators=(",", ":")).encode()
    assert np.frombuffer(wire.raw(ids), "<i4").tolist() == ids.tolist()


def test_powers_of_ten_and_their_neighbours():
    ids = np.array([v for k in range(1, 10) for v in (10**k - 1, 10**k, 10**k + 1)] * 20 + [2**31 - 1], np.int32)
    assert json.loads(wire.ids_json(ids)) == ids.tolist()


def test_json_around_ids():
    value = {"a": np.arange(3, dtype=np.int32), "b": {"c": None, "é\n": 'ü"\u2028'}, "d": [1.5, True]}
    want = {"a": [0, 1, 2], "b": {"c": None, "é\n": 'ü"\u2028'}, "d": [1.5, True]}
    assert json.loads(wire.dump(value)) == want


def test_a_digest_is_of_the_ids_alone():
    ids = np.arange(10, dtype=np.int32)
    assert wire.digest(ids) == wire.digest(np.arange(20, dtype=np.int32)[:10].astype(">i4"))
    assert wire.digest(ids) != wire.digest(ids[:9])


def test_token_strings_are_those_of_the_vocabulary():
    for family in ("llama3", "qwen3"):
        reference = families.tokenizer(family)
        ids = np.arange(0, reference.get_vocab_size(), 7, dtype=np.int32)
        assert token_strings(toktier.load(reference), ids) == [reference.id_to_token(i) for i in ids.tolist()]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    assert token_strings(toktier.load(words), np.array([1, 0, 2, 1], np.int32)) == ["b", "a", "?", "b"]
    o200k = toktier.load("o200k_base")
    ids = o200k.encode(" 東<|endoftext|>", special_tokens="parse")
    assert token_strings(o200k, ids)[-1] == "<|endoftext|>"
    alphabet = families.byte_alphabet()
    assert token_strings(o200k, ids)[0] == "".join(alphabet[b] for b in o200k.token_bytes(int(ids[0])))


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [("", "", 0), ("", "a", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("abc", "abcd", 3), ("xa", "ya", 0)],
)
def test_what_two_texts_have_in_common(a, b, n):
    assert _common(a, b) == _common(b, a) == n


def test_who_may_ask():
    token = "a-token-of-some-length"
    assert auth.allowed(f"Bearer {token}".encode(), token)
    assert auth.allowed(f"bearer   {token} ".encode(), token)
    for bad in (None, b"", b"Bearer", b"Bearer ", b"Bearer \xff\xfe", b"Basic " + token.encode(), token.encode()):
        assert not auth.allowed(bad, token)


def test_where_it_may_listen_and_what_it_is_called(tmp_path, monkeypatch):
    assert all(auth.is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(auth.is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "no.such.name.invalid"))
    assert [auth.host_name(h) for h in (b"A.b:80", b"[::1]:80", b"[::1]", b"x", b"")] == ["a.b", "::1", "::1", "x", ""]
    with pytest.raises(InputError, match="--allow-anonymous"):
        run.bind("0.0.0.0", 0, guarded=False)
    bound = run.bind("127.0.0.1", 0, guarded=False)
    assert run.address(bound).startswith("http://127.0.0.1:")
    bound.close()
    monkeypatch.delenv("TOKTIER_TOKEN", raising=False)
    assert auth.read_token(None) is None
    monkeypatch.setenv("TOKTIER_TOKEN", " ")
    with pytest.raises(InputError, match="empty"):
        auth.read_token(None)
    (tmp_path / "token").write_text("from the file\n")
    assert auth.read_token(tmp_path / "token") == "from the file"


def test_settings_and_names_that_make_no_sense():
    for bad in (
        {"timeout": 0},
        {"max_body_bytes": 0},
        {"max_pending_bytes": 1},
        {"token": "short"},
        {"token": "é" * 20},
    ):
        with pytest.raises(InputError):
            Settings(**bad)
    assert run.named(("a=b=c", "d")) == {"a": "b=c", "d": "d"}
    for bad in (("=x",), ("x=",), ("",), ("é=x",), ("a=b", "a=c")):
        with pytest.raises(InputError, match="--model"):
            run.named(bad)
    assert run.lengths(("5", "b=7"), {"a": "x", "b": "y"}) == {"a": 5, "b": 7}
    for bad in ("0", "-1", "x", "c=5", "a=", f"{2**31}"):
        with pytest.raises(InputError, match="--max-model-len"):
            run.lengths((bad,), {"a": "x"})


def test_a_log_line_has_no_message_of_an_exception():
    try:
        raise ValueError("what a client sent")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())
    line = logs.NoText().format(record)
    assert "what a client sent" not in line
    assert "ValueError" in line
    assert "test_serve_parts" in line


def test_the_extra_is_asked_for_by_name_and_the_client_needs_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'toktier\[serve\]'"):
        create_app(None)
    block = "import sys; sys.modules.update(dict.fromkeys(['fastapi', 'uvicorn', 'prometheus_client', 'jax'])); "
    done = subprocess.run([sys.executable, "-c", block + "import toktier.serve.client"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# -- the application without a server: what the tier refuses -----------------------------------------------------------


def asked(tier, *requests, **settings):
    """Answers to requests (path, JSON) sent at the same time to an application in this process."""

    async def all_of_them():
        transport = httpx.ASGITransport(create_app(tier, **settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            return await asyncio.gather(*(client.post(path, json=body) for path, body in requests))

    return asyncio.run(all_of_them())


def test_too_late_is_504_and_nothing_is_done():
    with Tier({"o200k": "o200k_base"}) as tier:
        body = {"text": "hello", "create": True}
        for answer in asked(tier, ("/tokenize", {"prompt": "a"}), ("/sessions/x/append", body), timeout=1e-9):
            assert (answer.status_code, answer.json()["error"]["type"]) == (504, "timeout")
        assert not tier.delete("x")


def test_a_full_queue_is_503_and_the_others_are_served():
    with Tier({"o200k": "o200k_base"}, workers=1, max_queue=2) as tier:
        answers = asked(tier, *[("/tokenize", {"prompt": "hello world " * 2000})] * 12)
        served = [a.json()["tokens"] for a in answers if a.status_code == 200]
        refused = [a for a in answers if a.status_code != 200]
        assert served.count(tier.encode("hello world " * 2000).ids.tolist()) == len(served) >= 1
        assert refused
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded")
            assert answer.headers["retry-after"] == "1"


def test_bodies_that_would_be_too_much_together_are_503():
    with Tier({"o200k": "o200k_base"}) as tier:
        body = {"prompt": "x" * 900}
        answers = asked(tier, *[("/tokenize", body)] * 8, max_body_bytes=1000, max_pending_bytes=3000)
        assert {a.status_code for a in answers} == {200, 503}
        assert asked(tier, ("/tokenize", body), max_body_bytes=1000, max_pending_bytes=1000)[0].status_code == 200


def test_a_closed_tier_is_503():
    tier = Tier({"o200k": "o200k_base"})
    tier.close()
    answers = asked(tier, ("/tokenize", {"prompt": "a"}), ("/sessions/x/append", {"text": "a"}))
    assert [(a.status_code, a.json()["error"]["type"]) for a in answers] == [(503, "shutting_down")] * 2


def test_who_waits_for_a_session_holds_up_nobody_else_and_not_for_ever():
    inside, go_on = threading.Event(), threading.Event()

    def hold(session):
        inside.set()
        assert go_on.wait(60)

    async def beside(client):
        waiting = [asyncio.create_task(client.get("/sessions/x")) for _ in range(8)]
        await asyncio.sleep(0.1)
        body = {"prompt": "hello world " * 10_000}  # parsed in a thread
        assert (await client.post("/tokenize", json=body)).status_code == 200
        assert not any(task.done() for task in waiting)
        go_on.set()
        assert {(await task).json()["chars"] for task in waiting} == {2}

    async def too_late(client):
        for call in (client.get, client.delete):
            answer = await call("/sessions/x")
            assert (answer.status_code, answer.json()["error"]["type"]) == (504, "timeout")

    async def client_of(tier, talk, **settings):
        transport = httpx.ASGITransport(create_app(tier, Settings(**settings)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            async with asyncio.timeout(50):
                await talk(client)

    with Tier({"o200k": "o200k_base"}) as tier, ThreadPoolExecutor(1) as pool:
        tier.encode("a", session="x")
        change = pool.submit(tier.append, "x", "b", check=hold)
        try:
            assert inside.wait(60)
            asyncio.run(client_of(tier, too_late, timeout=0.05))
            asyncio.run(client_of(tier, beside))
        finally:
            go_on.set()
        assert change.result().patch is not None
        assert tier.session_ids("x", timeout=1).tolist() == tier.encode("ab").ids.tolist()


def test_two_services_on_one_store_stay_exact(tmp_path):
    with Tier({"o200k": "o200k_base"}, path=tmp_path) as one, Tier({"o200k": "o200k_base"}, path=tmp_path) as two:
        text = ""
        for k in range(8):
            body = {"text": f"piece {k}, ", "create": True, "expected_chars": len(text), "return_ids": True}
            answer, again = asked((one, two)[k % 2], *[("/sessions/x/append", body)] * 2)
            assert sorted((answer.status_code, again.status_code)) == [200, 409]
            text += body["text"]
            good = answer if answer.status_code == 200 else again
            assert good.json()["tokens"] == one.encode(text).ids.tolist()


def test_a_store_that_fails_is_503_and_the_session_as_it_was(tmp_path, caplog):
    with Tier({"o200k": "o200k_base"}, path=tmp_path) as tier:
        tier.update("x", "hello", create=True)
        (file,) = tmp_path.glob("*.db")
        for broken in (True, False):
            with contextlib.closing(sqlite3.connect(file)) as db:
                db.execute("ALTER TABLE chunk RENAME TO away" if broken else "ALTER TABLE away RENAME TO chunk")
            (answer,) = asked(tier, ("/sessions/x/append", {"text": " canaryword", "expected_chars": 5}))
            if broken:
                found = answer.json()["error"]
                assert (answer.status_code, found["type"]) == (503, "storage_failed")
                assert found["request_id"] in caplog.text
                assert str(tmp_path) not in answer.text
            else:
                assert answer.json()["chars"] == len("hello canaryword")
    assert "canaryword" not in caplog.text


def test_an_unforeseen_error_is_500_without_its_message(caplog):
    class Broken(Tier):
        async def encode_async(self, *args, **options):
            raise ZeroDivisionError("canaryword")

    with caplog.at_level(logging.ERROR), Broken({"o200k": "o200k_base"}) as tier:
        (answer,) = asked(tier, ("/tokenize", {"prompt": "canaryword"}))
    found = answer.json()["error"]
    assert (answer.status_code, found["type"]) == (500, "internal")
    assert found["request_id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "canaryword" not in caplog.text + answer.text


def test_a_session_keeps_the_way_it_was_made():
    reference = families.tokenizer("llama3")
    with Tier({"llama": reference}) as tier:
        made = {"text": "a<|eot_id|>", "create": True, "special_tokens": "text", "add_special_tokens": True}
        first, other, more = (
            asked(tier, ("/sessions/x/append", body))[0]
            for body in (
                {**made, "return_ids": True},
                {"text": "b", "special_tokens": "parse"},
                {"text": "b", "return_ids": True},
            )
        )
        tok = tier.tokenizers["llama"]
        want = tok.encode("a<|eot_id|>", special_tokens="text", add_special_tokens=True).tolist()
        assert first.json()["tokens"] == want
        assert other.status_code == 400
        assert other.json()["error"]["argument"] == "special_tokens"
        want = tok.encode("a<|eot_id|>b", special_tokens="text", add_special_tokens=True).tolist()
        assert more.json()["tokens"] == want
