"""The service: a real process, asked by real clients, answers what the reference says or says why not."""

import asyncio
import concurrent.futures
import json
import os
import random
import re
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import families
import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service import Service, served

import toktier
from toktier.serve.client import Client, ServiceError

TEXTS = families.texts()
JSON = {"content-type": "application/json"}
MAX_BODY = 1 << 22


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    directory = tmp_path_factory.mktemp("service")
    llama = directory / "tokenizer.json"
    llama.write_text(families.tokenizer_json("llama3"), encoding="utf-8")
    models = ["-m", "o200k=o200k_base", "-m", f"llama={llama}", "--max-model-len", "llama=8192"]
    limits = ["--max-body", "4M", "--body-timeout", "5", "--max-concurrent", "64"]
    with served(directory, "-p", "0", *models, *limits, "--verify-rate", "1") as running:
        yield running


@pytest.fixture
def http(service):
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def o200k():
    return toktier.load("o200k_base")


@pytest.fixture
def name(request):
    return re.sub(r"[^A-Za-z0-9]", ".", request.node.name)[:100]


def metric(http, wanted, **labels):
    """The sum of a metric's samples with these labels."""
    page = http.get("/metrics").text
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    chosen = [s.value for s in samples if s.name == wanted and labels.items() <= s.labels.items()]
    assert chosen, f"{wanted} {labels} is not among the metrics"
    return sum(chosen)


def error(answer, status):
    """The error object of an answer, its form checked."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    found = body["error"]
    assert {"type", "message", "argument", "status", "request_id"} <= set(found)
    assert found["status"] == status
    assert found["request_id"] == answer.headers["x-request-id"]
    return found


# -- tokenize, detokenize ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["english", "chinese", "code", "chat", "hard"])
def test_tokenize_has_vllms_shape_and_the_references_ids(http, o200k, kind):
    text, reference = TEXTS[kind], families.tokenizer("llama3")
    answer = http.post("/tokenize", json={"model": "llama", "prompt": text, "return_token_strs": True})
    want = reference.encode(text)
    assert answer.json() == {
        "count": len(want.ids),
        "max_model_len": 8192,
        "tokens": want.ids,
        "token_strs": [reference.id_to_token(i) for i in want.ids],
    }
    bare = http.post("/tokenize", json={"model": "llama", "prompt": text, "add_special_tokens": False}).json()
    assert bare["tokens"] == reference.encode(text, add_special_tokens=False).ids
    assert bare["token_strs"] is None
    default = http.post("/tokenize", json={"prompt": text, "special_tokens": "text"}).json()
    assert default["tokens"] == o200k.encode(text, special_tokens="text").tolist()
    back = http.post("/detokenize", json={"model": "llama", "tokens": bare["tokens"]})
    assert back.json() == {"prompt": reference.decode(bare["tokens"], skip_special_tokens=False)}


@pytest.mark.parametrize("how", [{"params": {"format": "raw"}}, {"headers": {"accept": "application/octet-stream"}}])
def test_ids_come_raw_if_asked_for(http, o200k, how):
    text = TEXTS["french"]
    answer = http.post("/tokenize", json={"prompt": text}, **how)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert np.frombuffer(answer.content, "<i4").tolist() == o200k.encode(text).tolist()
    assert int(answer.headers["x-toktier-count"]) == len(answer.content) // 4
    assert answer.headers["x-toktier-path"] in ("host", "device", "reference")
    assert int(answer.headers["x-toktier-served-bytes"]) == len(text.encode())


def test_no_text_and_a_long_text(http, o200k):
    assert http.post("/tokenize", json={"prompt": ""}).json()["tokens"] == []
    assert http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}
    text = "".join(TEXTS.values())[:200_000]
    tokens = http.post("/tokenize", json={"prompt": text, "special_tokens": "text"}).json()["tokens"]
    assert tokens == o200k.encode(text, special_tokens="text").tolist()
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": text}


# -- sessions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("model", ["o200k", "llama"])
def test_patches_add_up_to_the_ids_of_a_fresh_encode(http, o200k, name, model, raw):
    rng = random.Random(7)
    source = TEXTS["english"] + TEXTS["japanese"] + TEXTS["code"]
    text, ids = "", []
    for step in range(30):
        piece = source[(at := rng.randrange(len(source) - 200)) : at + rng.randrange(200)]
        kind = "update" if step == 0 else rng.choice(["append", "append", "edit", "update"])
        body = {"model": model, "text": piece, "expected_chars": len(text), "expected_length": len(ids)}
        if kind == "append":
            text += piece
        elif kind == "edit":
            body["start"], body["stop"] = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            text = text[: body["start"]] + piece + text[body["stop"] :]
        else:
            text = body["text"] = piece if step == 0 else text[: len(text) * 3 // 4] + piece
        answer = http.post(f"/sessions/{name}/{kind}", json=body, params={"format": "raw"} if raw else {})
        assert answer.status_code == 200, answer.text
        if raw:
            said = {k.removeprefix("x-toktier-"): v for k, v in answer.headers.items()}
            assert said["holds"] == "patch"
            start, removed = int(said["start"]), int(said["removed"])
            new, length, chars = np.frombuffer(answer.content, "<i4").tolist(), int(said["length"]), int(said["chars"])
        else:
            said = answer.json()
            start, removed, new = said["patch"]["start"], said["patch"]["removed"], said["patch"]["ids"]
            length, chars = said["length"], said["chars"]
            assert said["tokens"] is None
        ids[start : start + removed] = new
        assert (length, chars) == (len(ids), len(text))
        want = families.tokenizer("llama3").encode(text, add_special_tokens=False).ids
        assert ids == (want if model == "llama" else o200k.encode(text).tolist())
    shown = http.get(f"/sessions/{name}", params={"model": model, "ids": "true"}).json()
    assert (shown["tokens"], shown["length"], shown["chars"]) == (ids, len(ids), len(text))
    assert http.delete(f"/sessions/{name}", params={"model": model}).json()["deleted"] is True
    assert error(http.get(f"/sessions/{name}", params={"model": model}), 404)["type"] == "unknown_session"
    assert error(http.delete(f"/sessions/{name}", params={"model": model}), 404)["argument"] == "id"


def test_all_ids_and_their_digest_if_asked_for(http, o200k, name):
    body = {"text": "the build pipe", "create": True, "return_ids": True, "return_digest": True}
    first = http.post(f"/sessions/{name}/append", json=body).json()
    want = o200k.encode("the build pipe")
    assert first["tokens"] == first["patch"]["ids"] == want.tolist()
    answer = http.post(f"/sessions/{name}/append?format=raw", json={**body, "text": "line", "create": False})
    want = o200k.encode("the build pipeline")
    assert answer.headers["x-toktier-holds"] == "ids"
    assert (answer.headers["x-toktier-start"], answer.headers["x-toktier-removed"]) == ("2", "1")
    assert np.frombuffer(answer.content, "<i4").tolist() == want.tolist()
    shown = http.get(f"/sessions/{name}?digest=true&format=raw")
    assert shown.content == answer.content
    assert shown.headers["x-toktier-digest"] == answer.headers["x-toktier-digest"] != first["digest"]


def test_a_session_costs_its_change(http, name):
    text = TEXTS["english"] * 20
    made = http.post(f"/sessions/{name}/update", json={"text": text}).json()
    assert made["scanned_bytes"] >= len(text.encode())
    scanned = metric(http, "toktier_scanned_bytes_total", path="session")
    served_bytes = metric(http, "toktier_served_bytes_total", path="session")
    for _ in range(5):
        grown = http.post(f"/sessions/{name}/append", json={"text": "one more sentence. "}).json()
        assert grown["path"] == "session"
        assert grown["scanned_bytes"] < 200
        assert grown["served_bytes"] > len(text)
    assert metric(http, "toktier_scanned_bytes_total", path="session") - scanned < 1000
    assert metric(http, "toktier_served_bytes_total", path="session") - served_bytes > 5 * len(text)


@pytest.mark.parametrize(
    ("condition", "argument"),
    [
        ({"expected_chars": 3}, "expected_chars"),
        ({"expected_length": 999}, "expected_length"),
        ({"if_match": "00"}, "if_match"),
        ({"expected_chars": 5, "if_match": ""}, "if_match"),
    ],
)
def test_a_condition_that_does_not_hold_changes_nothing(http, name, condition, argument):
    http.post(f"/sessions/{name}/update", json={"text": "hello"})
    before = http.get(f"/sessions/{name}?ids=true&digest=true").json()
    for kind, more in (("append", {}), ("update", {}), ("edit", {"start": 0, "stop": 1})):
        found = error(http.post(f"/sessions/{name}/{kind}", json={"text": "x", **more, **condition}), 409)
        assert (found["type"], found["argument"]) == ("conflict", argument)
        assert (found["chars"], found["length"]) == (5, before["length"])
    assert http.get(f"/sessions/{name}?ids=true&digest=true").json() == before
    good = {"expected_chars": 5, "expected_length": before["length"], "if_match": before["digest"]}
    assert http.post(f"/sessions/{name}/append", json={"text": "x", **good}).status_code == 200


def test_a_new_session_whose_condition_fails_is_not_made(http, name):
    body = {"text": "x", "create": True, "expected_chars": 7}
    assert error(http.post(f"/sessions/{name}/append", json=body), 409)["chars"] == 0
    assert http.get(f"/sessions/{name}").status_code == 404
    assert http.post(f"/sessions/{name}/append", json={**body, "expected_chars": 0}).status_code == 200


def test_models_have_sessions_of_their_own(http, name):
    for model in ("o200k", "llama"):
        http.post(f"/sessions/{name}/update", json={"text": f"of {model}", "model": model})
    assert http.get(f"/sessions/{name}").json()["model"] == "o200k"
    assert http.get(f"/sessions/{name}?model=llama").json()["chars"] == len("of llama")
    http.delete(f"/sessions/{name}?model=llama")
    assert http.get(f"/sessions/{name}").status_code == 200


# -- the client that keeps ids -----------------------------------------------------------------------------------------


def test_the_client_keeps_the_ids_by_patches(service, o200k, name):
    with Client(service.url) as client:
        assert client.tokenize("hello world").tolist() == o200k.encode("hello world").tolist()
        assert client.detokenize([24912, 2375]) == "hello world"
        session = client.session(name, TEXTS["english"], exact=True)
        session.append(" and more, 東京")
        session.edit(3, 10, "")
        session.update(session.text[:500] + "in the middle" + session.text[700:])
        assert session.ids.tolist() == o200k.encode(session.text).tolist()
        other = client.session(name, session.text)
        other.append("!")
        with pytest.raises(ServiceError, match="expected_chars") as caught:
            session.append("?")
        assert (caught.value.status, caught.value.type) == (409, "conflict")
        session.delete()
        other.append(" once more")  # the service has forgotten it: the whole text goes up
        assert other.ids.tolist() == o200k.encode(other.text).tolist()
        literal = client.session(f"{name}.text", "a <|endoftext|>", special_tokens="text")
        literal.delete()
        literal.append("<|endoftext|>")
        assert literal.ids.tolist() == o200k.encode(literal.text, special_tokens="text").tolist()
        with pytest.raises(ServiceError, match="lone surrogate"):
            other.append("\ud800")


def test_a_patch_is_what_goes_over_the_wire(service, http, name):
    with Client(service.url) as client:
        session = client.session(name, TEXTS["english"] * 50)
        received, sent = metric(http, "toktier_received_bytes_total"), metric(http, "toktier_sent_bytes_total")
        page = len(http.get("/metrics").content)
        for k in range(10):
            session.append(f" step {k}.")
            session.update(session.text[:-9] + "step.")
        assert metric(http, "toktier_received_bytes_total") - received < 20 * 300
        assert metric(http, "toktier_sent_bytes_total") - sent < 20 * 100 + 6 * page


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD = [
    ("/tokenize", b"", 400, "invalid_json", None),
    ("/tokenize", b"{", 400, "invalid_json", None),
    ("/tokenize", b"[" * 100_000, 400, "invalid_json", None),
    ("/tokenize", b'\xef\xbb\xbf{"prompt": "a"}', 400, "invalid_json", None),
    ("/tokenize", b'{"prompt": "\xff"}', 400, "invalid_utf8", None),
    ("/tokenize", b'{"prompt": "\xed\xa0\x80"}', 400, "invalid_utf8", None),
    ("/tokenize", rb'{"prompt": "a\ud800"}', 400, "invalid_unicode", "prompt"),
    ("/tokenize", rb'{"prompt": "\udc00\ud800"}', 400, "invalid_unicode", "prompt"),
    ("/tokenize", b"[]", 422, "invalid_request", None),
    ("/tokenize", b"{}", 422, "invalid_request", "prompt"),
    ("/tokenize", b'{"prompt": null}', 422, "invalid_request", "prompt"),
    ("/tokenize", b'{"prompt": ["a"]}', 422, "invalid_request", "prompt"),
    ("/tokenize", b'{"prompt": 1}', 422, "invalid_request", "prompt"),
    ("/tokenize", b'{"prompt": "a", "add_special_tokens": 1}', 422, "invalid_request", "add_special_tokens"),
    ("/tokenize", b'{"prompt": "a", "add_specials": true}', 422, "invalid_request", "add_specials"),
    ("/tokenize", b'{"prompt": "a", "special_tokens": "maybe"}', 422, "invalid_request", "special_tokens"),
    ("/tokenize", b'{"prompt": "a", "model": "nope"}', 404, "unknown_model", "model"),
    ("/tokenize", b'{"prompt": "<|endoftext|>"}', 400, "special_token", "prompt"),
    ("/tokenize", b'{"messages": [{"role": "user", "content": "x"}]}', 501, "not_supported", "messages"),
    (
        "/tokenize?format=raw",
        b'{"prompt": "a", "return_token_strs": true}',
        422,
        "invalid_request",
        "return_token_strs",
    ),
    ("/tokenize?format=xml", b'{"prompt": "a"}', 422, "invalid_request", "format"),
    ("/detokenize", b'{"tokens": [-1]}', 400, "invalid_input", "tokens"),
    ("/detokenize", b'{"tokens": [1, 200019]}', 400, "invalid_input", "tokens"),
    ("/detokenize", b'{"tokens": [4294967297]}', 400, "invalid_input", "tokens"),
    ("/detokenize", b'{"tokens": [99999999999999999999999999]}', 400, "invalid_input", "tokens"),
    ("/detokenize", b'{"tokens": [' + b"9" * 5000 + b"]}", 400, "invalid_json", None),
    ("/detokenize", b'{"tokens": [1, 1.0]}', 422, "invalid_request", "tokens[1]"),
    ("/detokenize", b'{"tokens": [1.5]}', 422, "invalid_request", "tokens[0]"),
    ("/detokenize", b'{"tokens": [true]}', 422, "invalid_request", "tokens[0]"),
    ("/detokenize", b'{"tokens": ["1"]}', 422, "invalid_request", "tokens[0]"),
    ("/detokenize", b'{"tokens": [null]}', 422, "invalid_request", "tokens[0]"),
    ("/detokenize", b'{"tokens": [NaN]}', 422, "invalid_request", "tokens[0]"),
    ("/detokenize", b'{"tokens": 1}', 422, "invalid_request", "tokens"),
    ("/sessions/none/append", b'{"text": "a"}', 404, "unknown_session", "id"),
    ("/sessions/none/update", b'{"text": "a", "create": false}', 404, "unknown_session", "id"),
    ("/sessions/none/edit", b'{"start": 0, "stop": 0, "text": "a"}', 404, "unknown_session", "id"),
    ("/sessions/none/append", b'{"text": "a", "model": "nope"}', 404, "unknown_model", "model"),
    ("/sessions/here/edit", b'{"start": 0, "stop": 99, "text": "a"}', 400, "invalid_input", "stop"),
    ("/sessions/here/edit", b'{"start": 99, "stop": 99, "text": "a"}', 400, "invalid_input", "start"),
    ("/sessions/here/edit", b'{"start": 3, "stop": 2, "text": "a"}', 400, "invalid_input", "stop"),
    ("/sessions/here/edit", b'{"start": -1, "stop": 2, "text": "a"}', 422, "invalid_request", "start"),
    ("/sessions/here/edit", b'{"start": 1.0, "stop": 2, "text": "a"}', 422, "invalid_request", "start"),
    ("/sessions/here/edit", b'{"start": 1, "stop": 1' + b"0" * 30 + b', "text": "a"}', 400, "invalid_input", "stop"),
    ("/sessions/here/edit", b'{"text": "a"}', 422, "invalid_request", "start"),
    ("/sessions/here/append", b'{"text": "a <|endofprompt|>"}', 400, "special_token", "text"),
    ("/sessions/here/append", rb'{"text": "\ud83d"}', 400, "invalid_unicode", "text"),
    ("/sessions/here/append", b'{"text": "a", "expected_chars": -1}', 422, "invalid_request", "expected_chars"),
    ("/sessions/%20/append", b'{"text": "a"}', 422, "invalid_session_name", "id"),
    ("/sessions/%ff/append", b'{"text": "a"}', 422, "invalid_session_name", "id"),
    ("/sessions/" + "x" * 201 + "/append", b'{"text": "a"}', 422, "invalid_session_name", "id"),
    ("/sessions//append", b'{"text": "a"}', 404, "not_found", None),
    ("/sessions/a%2Fb/append", b'{"text": "a"}', 404, "not_found", None),
    ("/sessions/here/truncate", b'{"text": "a"}', 404, "not_found", None),
    ("/tokenize/", b'{"prompt": "a"}', 404, "not_found", None),
    ("/../etc/passwd", b"", 404, "not_found", None),
]


@pytest.mark.parametrize(("path", "body", "status", "type", "argument"), BAD, ids=range(len(BAD)))
def test_bad_input_is_named_and_changes_nothing(http, path, body, status, type, argument):
    http.post("/sessions/here/update", json={"text": "abcdef"})
    before = http.get("/sessions/here?ids=true").json()
    found = error(http.post(path, content=body, headers=JSON), status)
    assert (found["type"], found["argument"]) == (type, argument)
    assert len(found["message"]) > 20
    assert http.get("/sessions/here?ids=true").json() == before


def test_other_methods_and_kinds_of_body(http):
    found = http.get("/tokenize")
    assert (error(found, 405)["type"], found.headers["allow"]) == ("method_not_allowed", "POST")
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        found = error(http.post("/tokenize", content=b'{"prompt": "a"}', headers=headers), 415)
        assert found["argument"] == "Content-Type"
    zipped = http.post("/tokenize", content=b"x", headers={**JSON, "content-encoding": "gzip"})
    assert error(zipped, 415)["argument"] == "Content-Encoding"
    assert http.post(
        "/tokenize", content=b'{"prompt": "a"}', headers={"content-type": "Application/JSON; charset=utf-8"}
    )
    for query in ("ids=1", "digest=yes"):
        assert error(http.get(f"/sessions/here?{query}"), 422)["argument"] == query.partition("=")[0]


def test_a_pair_of_surrogate_escapes_is_one_character(http, o200k):
    answer = http.post("/tokenize", content=rb'{"prompt": "\ud83d\ude00"}', headers=JSON)
    assert answer.json()["tokens"] == o200k.encode("😀").tolist()


def test_request_ids(http):
    assert http.get("/healthz", headers={"x-request-id": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"
    for bad in ("a b", "x" * 65, "a\tb", "<script>"):
        assert re.fullmatch("[0-9a-f]{32}", http.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"])


def test_a_page_with_another_name_is_not_served(http):
    found = error(http.post("/tokenize", json={"prompt": "a"}, headers={"host": "evil.example"}), 421)
    assert http.get("/healthz", headers={"host": "any.example"}).status_code == 200
    assert found["argument"] == "Host"
    for good in ("localhost", "localhost:1", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert http.post("/tokenize", json={"prompt": "a"}, headers={"host": good}).status_code == 200


# -- clients that misbehave --------------------------------------------------------------------------------------------


def spoken(service, data, *, read=True):
    """What the service answers to these bytes on a connection of their own."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        connection.sendall(data)
        if not read:
            return b""
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer


HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_body_of_100_megabytes_is_refused_unread(service, http):
    before = metric(http, "toktier_received_bytes_total")
    declared = spoken(service, HEAD + b"Content-Length: 104857600\r\n\r\n{")
    assert declared.startswith(b"HTTP/1.1 413 ")
    assert b'"type": "too_large"' in declared
    asking = spoken(service, HEAD + b"Content-Length: 104857600\r\nExpect: 100-continue\r\n\r\n")
    assert asking.startswith(b"HTTP/1.1 413 ")  # and no leave to go on before it
    assert metric(http, "toktier_received_bytes_total") - before < 1000


@pytest.mark.parametrize("chunked", [False, True])
def test_100_megabytes_from_an_ordinary_client(service, http, chunked):
    before, taken = metric(http, "toktier_received_bytes_total"), 0

    def parts():
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield b" " * (1 << 20)

    headers = JSON if chunked else {**JSON, "content-length": str(100 << 20)}
    with httpx.Client(base_url=service.url, timeout=60) as client:
        answer = client.post("/tokenize", content=parts(), headers=headers)
    assert error(answer, 413)["limit"] == MAX_BODY
    assert answer.headers["connection"] == "close"
    assert metric(http, "toktier_received_bytes_total") - before < 2 * MAX_BODY
    assert taken < 50


def test_half_a_body_and_gone(service, http):
    gone = metric(http, "toktier_errors_total", type="client_gone") if "client_gone" in http.get("/metrics").text else 0
    for head in (HEAD + b"Content-Length: 1000\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n"):
        spoken(service, head + b'{"prompt": "only half of', read=False)
    for _ in range(200):
        if "client_gone" in http.get("/metrics").text:
            break
    for _ in range(200):
        if metric(http, "toktier_errors_total", type="client_gone") == gone + 2:
            break
    assert metric(http, "toktier_errors_total", type="client_gone") == gone + 2
    assert http.post("/tokenize", json={"prompt": "hello world"}).json()["count"] == 2


def test_who_goes_away_before_the_answer_costs_no_work(service, http):
    """What two workers have not begun is taken out of the queue."""
    body = json.dumps({"prompt": TEXTS["code"] * 200}).encode()
    data = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in range(40):
            list(pool.map(lambda _: spoken(service, data, read=False), range(16)))
            while metric(http, "toktier_requests_in_flight") > 1:  # that of the metrics
                pass
            if metric(http, "toktier_unserved_total", reason="cancelled"):
                break
    assert metric(http, "toktier_unserved_total", reason="cancelled") >= 1
    assert http.post("/tokenize", json={"prompt": "hello world"}).json()["count"] == 2


def test_half_a_body_and_nothing_more_is_told_after_a_while(service):
    answer = spoken(service, HEAD + b"Content-Length: 1000\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"type": "body_timeout"' in answer


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_ends_its_own_connection_alone(service, http, data):
    try:
        answer = spoken(service, data)
    except ConnectionError:
        answer = b""
    assert answer == b"" or re.match(rb"HTTP/1\.1 4\d\d ", answer)
    assert http.get("/healthz").status_code == 200


# -- many at a time ----------------------------------------------------------------------------------------------------


def test_fifty_clients_at_a_time(service, o200k, name):
    source = TEXTS["english"] + TEXTS["korean"] + TEXTS["code"]
    start = threading.Barrier(50)

    def client(k):
        rng = random.Random(k)
        with Client(service.url) as mine:
            start.wait(60)
            session = mine.session(f"{name}.{k}", source[: rng.randrange(2000)])
            for _ in range(4):
                at = rng.randrange(len(source) - 300)
                session.append(source[at : at + rng.randrange(300)])
                piece = source[at : at + 100]
                assert mine.tokenize(piece).tolist() == o200k.encode(piece).tolist()
            assert session.ids.tolist() == o200k.encode(session.text).tolist()
        return 1

    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        assert sum(pool.map(client, range(50))) == 50


def test_two_clients_on_one_session_lose_nothing(service, http, o200k, name):
    http.post(f"/sessions/{name}/update", json={"text": ""})

    def writer(mark):
        conflicts = 0
        with httpx.Client(base_url=service.url, timeout=60) as mine:
            for k in range(20):
                while True:
                    chars = mine.get(f"/sessions/{name}").json()["chars"]
                    body = {"text": f"{mark}{k:02d} ", "expected_chars": chars}
                    answer = mine.post(f"/sessions/{name}/append", json=body)
                    if answer.status_code == 200:
                        break
                    assert error(answer, 409)["type"] == "conflict"
                    conflicts += 1
        return conflicts

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(writer, "ab"))
    tokens = http.get(f"/sessions/{name}?ids=true").json()["tokens"]
    text = o200k.decode(tokens)
    assert tokens == o200k.encode(text).tolist()
    words = text.split()
    assert [w for w in words if w[0] == "a"] == [f"a{k:02d}" for k in range(20)]
    assert [w for w in words if w[0] == "b"] == [f"b{k:02d}" for k in range(20)]


def test_many_appends_to_one_session_without_conditions(service, http, o200k, name):
    http.post(f"/sessions/{name}/update", json={"text": ""})

    def append(k):
        with httpx.Client(base_url=service.url, timeout=60) as mine:
            return [
                mine.post(f"/sessions/{name}/append", json={"text": f"w{k}.{n} "}).json()["chars"] for n in range(5)
            ]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        sizes = [chars for found in pool.map(append, range(8)) for chars in found]
    shown = http.get(f"/sessions/{name}?ids=true").json()
    text = o200k.decode(shown["tokens"])
    assert sorted(text.split()) == sorted(f"w{k}.{n}" for k in range(8) for n in range(5))
    assert len(set(sizes)) == 40
    assert max(sizes) == shown["chars"] == len(text)
    assert shown["tokens"] == o200k.encode(text).tolist()


def test_a_long_text_does_not_hold_up_the_others(service, o200k):
    text = (TEXTS["english"] + TEXTS["hard"]) * 60

    async def run():
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
            long = asyncio.create_task(client.post("/tokenize", json={"prompt": text[: MAX_BODY // 2]}))
            answered = 0
            while not long.done():
                assert (await client.get("/healthz")).status_code == 200
                answered += 1
            return answered, (await long).json()

    answered, long = asyncio.run(run())
    assert answered >= 3
    assert long["count"] == len(long["tokens"])
    assert long["tokens"] == o200k.encode(text[: MAX_BODY // 2]).tolist()


# -- what it tells of itself -------------------------------------------------------------------------------------------


def test_metrics(http, name):
    requests = metric(http, "toktier_answers_total")
    http.post("/tokenize", json={"prompt": "hello"})
    http.post(f"/sessions/{name}/update", json={"text": "hello"})
    assert metric(http, "toktier_answers_total") == requests + 2
    assert metric(http, "toktier_requests_total", endpoint="/sessions/{id}/update", status="200") >= 1
    assert metric(http, "toktier_request_seconds_count", endpoint="/tokenize") >= 1
    assert metric(http, "toktier_requests_in_flight") >= 0
    assert metric(http, "toktier_sessions") >= 1
    assert metric(http, "toktier_session_bytes") > 0
    assert metric(http, "toktier_queue") >= 0
    assert metric(http, "toktier_verifier_total", event="sampled") >= 1
    assert metric(http, "toktier_verifier_total", event="mismatched") == 0
    openmetrics = http.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.text.endswith("# EOF\n")


def test_it_describes_itself(http):
    described = http.get("/openapi.json").json()
    assert {
        "/tokenize",
        "/detokenize",
        "/sessions/{id}",
        "/sessions/{id}/append",
        "/sessions/{id}/update",
        "/sessions/{id}/edit",
        "/metrics",
        "/healthz",
    } == set(described["paths"])
    body = described["paths"]["/tokenize"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == {"model", "prompt", "add_special_tokens", "return_token_strs", "special_tokens"}
    assert "openapi.json" in http.get("/docs").text
    assert http.get("/healthz").json() == {"status": "ok", "version": toktier.__version__, "models": 2}


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are written with curl")
def test_the_examples_of_the_docs(service, tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(curl .*?)```\n(?:```json\n(.*?)```)?", page, re.S)
    assert len(blocks) >= 6
    for command, said in blocks:
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "URL": service.url},
            check=True,
        )
        if said:
            want, got = json.loads(said), json.loads(done.stdout)
            for volatile in (want, got, want.get("error", {}), got.get("error", {})):
                for name in ("reason", "request_id"):
                    volatile.pop(name, None)
            assert got == want
    assert np.fromfile(tmp_path / "ids.bin", "<i4").tolist() == [3086, 3024, 29412]
    code = next(b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "Client" in b)
    found = {}
    exec(code.replace("http://127.0.0.1:8000", service.url), found)
    assert found["session"].text == "the test pipeline"
    assert found["ids"].tolist() == toktier.load("o200k_base").encode("the test pipeline").tolist()
    found["client"].close()


def test_nothing_a_client_sends_is_in_the_log(service, http):
    secret = "canaryword"
    body = {"prompt": f"{secret} <|endoftext|>", "model": None}
    sent = [
        http.post("/tokenize", json=body),
        http.post("/tokenize", json={**body, "special_tokens": "text", "return_token_strs": True}),
        http.post("/tokenize", json={**body, secret: secret}),
        http.post("/tokenize", json={**body, "model": secret}),
        http.post("/tokenize", content=f'{{"prompt": "{secret}', headers=JSON),
        http.post("/tokenize", content=secret.encode() + b"\xff", headers=JSON),
        http.post("/tokenize", content=f'{{"prompt": "{secret}\\ud800"}}', headers=JSON),
        http.post("/tokenize", json=body, headers={"authorization": f"Bearer {secret}", "host": f"{secret}.example"}),
        http.post("/tokenize", json=body, headers={"x-request-id": f"{secret} {secret}", "cookie": secret}),
        http.post("/detokenize", json={"tokens": [secret]}),
        http.post(f"/sessions/{secret}/update", json={"text": secret}),
        http.post(f"/sessions/{secret}/append", json={"text": secret, "expected_chars": 1}),
        http.post(f"/sessions/{secret}/edit", json={"text": secret, "start": 0, "stop": 10**6}),
        http.get(f"/sessions/{secret}?model={secret}"),
        http.get(f"/{secret}?{secret}={secret}"),
        http.request("CANARYWORD", "/tokenize"),
        http.delete(f"/sessions/{secret}"),
    ]
    spoken(service, HEAD + b"Content-Length: 1000\r\n\r\n" + secret.encode(), read=False)
    spoken(service, secret.encode() + b"\r\n\r\n")
    ids = {answer.headers["x-request-id"] for answer in sent}
    log = "\n".join(service.lines())
    assert all(f"id={i} " in log for i in ids)
    assert secret not in log.lower()
    assert "Traceback" not in log
    assert isinstance(service, Service)


def test_nothing_is_wrong_in_the_end(http):
    assert metric(http, "toktier_verifier_total", event="mismatched") == 0
    assert not [line for line in json.dumps(http.get("/metrics").text).split("\\n") if 'status="500"' in line]
