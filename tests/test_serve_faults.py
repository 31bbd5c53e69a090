"""The service under faults: killed, told to end, its verifier killed, too busy, asked by strangers."""

import concurrent.futures
import contextlib
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import families
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from service import WAIT, Service, served

import toktier
from toktier.serve.client import Client, ServiceError

TEXTS = families.texts()
TOKEN = "0123456789abcdef-a-token-of-a-test"


@pytest.fixture(scope="module")
def o200k():
    return toktier.load("o200k_base")


def until(says, what):
    """Waits until something is so."""
    end = time.monotonic() + WAIT
    while not says():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


def metrics(http):
    page = http.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"}).text
    return {(s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(page) for s in f.samples}


# -- killed, and told to end -------------------------------------------------------------------------------------------


def test_killed_under_load_and_started_again(tmp_path, o200k):
    """Committed sessions are there again, and clients go on where they were."""
    source = TEXTS["english"] + TEXTS["thai"] + TEXTS["code"]
    arguments = ["--sessions", str(tmp_path / "sessions"), "--verify-rate", "0"]
    service = Service(tmp_path, "-p", "0", *arguments)
    with Client(service.url) as client:
        quiet = client.session("quiet", source)
        client.session("gone", "x").delete()
    steps = 0

    def writer(k):
        nonlocal steps
        rng = random.Random(k)
        with Client(service.url, patience=WAIT) as client:
            session = client.session(f"busy{k}", "", exact=k == 0)
            for n in range(40):
                at = rng.randrange(len(source) - 200)
                if n % 7 == 3:
                    session.update(session.text[: len(session.text) * 2 // 3] + source[at : at + 50])
                elif n % 7 == 5:
                    session.edit(n, n + 3, source[at : at + 3])
                else:
                    session.append(source[at : at + rng.randrange(1, 200)])
                steps += 1
            return session.text, session.ids.tolist()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(writer, k) for k in range(4)]
        for wanted in (30, 90):
            until(lambda wanted=wanted: steps >= wanted or any(j.done() for j in jobs), "load")
            service.kill()
            service = Service(tmp_path, "-p", str(service.port), *arguments)
        results = [job.result(WAIT) for job in jobs]
    try:
        with httpx.Client(base_url=service.url, timeout=60) as http:
            for k, (text, ids) in enumerate(results):
                assert ids == o200k.encode(text).tolist()
                shown = http.get(f"/sessions/busy{k}?ids=true").json()
                assert (shown["tokens"], shown["chars"]) == (ids, len(text))
            assert http.get("/sessions/quiet?ids=true").json()["tokens"] == quiet.ids.tolist()
            assert http.get("/sessions/gone").status_code == 404
            assert metrics(http)["toktier_session_events_total", "loads"] >= 5
    finally:
        assert service.stop() == 0
    for path in ((tmp_path / "sessions"), *(tmp_path / "sessions").iterdir()):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077


class Lossy:
    """A connection between client and service that loses the answer to every third request once it was made."""

    def __init__(self, port):
        self._to, self.requests, self.lost = port, 0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while True:
            with contextlib.suppress(ConnectionError):
                client, _ = self._listener.accept()
                with client, socket.create_connection(("127.0.0.1", self._to), timeout=60) as service:
                    while data := client.recv(1 << 20):
                        if data == b"end":
                            return
                        while not self._whole(data):
                            data += client.recv(1 << 20)
                        service.sendall(data)
                        answer = b""
                        while not self._whole(answer):
                            answer += service.recv(1 << 20)
                        self.requests += 1
                        if self.requests % 3 == 0:
                            self.lost += 1
                            break
                        client.sendall(answer)

    @staticmethod
    def _whole(message):
        head, mark, body = message.partition(b"\r\n\r\n")
        size = [int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")]
        return bool(mark) and len(body) >= (size[0] if size else 0)

    def close(self):
        with socket.create_connection(("127.0.0.1", self._listener.getsockname()[1]), timeout=60) as last:
            last.sendall(b"end")
        self._thread.join(WAIT)
        self._listener.close()


@pytest.mark.parametrize("exact", [False, True])
def test_an_answer_that_is_lost_is_settled(guarded, o200k, exact):
    """The change was made, and the client does not know: it is not made twice, and the ids are right."""
    lossy = Lossy(guarded.port)
    rng, source = random.Random(3), TEXTS["russian"] + TEXTS["code"]
    try:
        with Client(lossy.url, token=TOKEN, patience=WAIT) as client:
            session = client.session(f"lossy.{exact}", source[:500], exact=exact)
            text = source[:500]
            for n in range(24):
                at, size = rng.randrange(len(text)), rng.randrange(60)
                piece = source[size : 2 * size]
                if n % 3 == 0:
                    session.append(piece)
                    text += piece
                elif n % 3 == 1:
                    session.edit(at, min(at + size, len(text)), piece)
                    text = text[:at] + piece + text[min(at + size, len(text)) :]
                else:
                    text = text[:at] + "".join(rng.sample("abcdefgh", 8)) + text[at + 8 :]  # often as long as before
                    session.update(text)
                assert session.text == text
                assert session.ids.tolist() == o200k.encode(text).tolist()
            session = None
    finally:
        lossy.close()
    assert lossy.lost >= 10
    with httpx.Client(base_url=guarded.url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        assert http.get(f"/sessions/lossy.{exact}?ids=true").json()["tokens"] == o200k.encode(text).tolist()


def test_sigterm_finishes_what_was_accepted(tmp_path, o200k):
    text = (TEXTS["english"] + TEXTS["hard"]) * 200
    service = Service(tmp_path, "-p", "0", "--verify-rate", "0")
    head = b"POST /tokenize?format=raw HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    slow = socket.create_connection(("127.0.0.1", service.port), timeout=60)
    body = b'{"prompt": "hello world"}'
    slow.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])  # accepted, half of it still to come
    with httpx.Client(base_url=service.url, timeout=60) as http, concurrent.futures.ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(http.post, "/tokenize", json={"prompt": text[k:]}) for k in range(3)]

        def accepted():
            found = metrics(http)
            over = found.get(("toktier_requests_total", "/tokenize", "200"), 0)
            return over + found["toktier_requests_in_flight",] - 1  # without that of the metrics

        until(lambda: accepted() >= 4, "requests under way")
        service.process.send_signal(signal.SIGTERM)
        until(lambda: "Shutting down" in service.log.read_text(), "the end to begin")
        for k, job in enumerate(jobs):
            assert job.result(WAIT).json()["tokens"] == o200k.encode(text[k:]).tolist()
        with contextlib.suppress(ConnectionError), slow:
            slow.sendall(body[10:])
            answer = b""
            while part := slow.recv(4096):
                answer += part
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(o200k.encode("hello world").astype("<i4").tobytes())
        assert service.stop() == 0
        with pytest.raises(httpx.ConnectError):
            http.get("/healthz")
    assert "Traceback" not in service.log.read_text()


# -- one service with a token, open to other machines, that takes two requests at a time -------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "token").write_text(TOKEN + "\n")
    arguments = ["--host", "0.0.0.0", "--token-file", str(directory / "token"), "--max-concurrent", "2"]
    with served(directory, "-p", "0", *arguments, "--verify-rate", "1", "--max-body", "64K") as running:
        yield running


@pytest.fixture
def stranger(guarded):
    with httpx.Client(base_url=guarded.url, timeout=60) as client:
        yield client


@pytest.fixture
def friend(guarded):
    with httpx.Client(base_url=guarded.url, timeout=60, headers={"authorization": f"Bearer {TOKEN}"}) as client:
        yield client


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN]
)
def test_without_the_token_nothing_but_health_is_told(stranger, header):
    headers = {} if header is None else {"authorization": header}
    for method, path in (
        ("POST", "/tokenize"),
        ("GET", "/sessions/x"),
        ("DELETE", "/sessions/x"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/nothing"),
    ):
        answer = stranger.request(method, path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.json()["error"]["type"] == "unauthorized"
    assert stranger.get("/healthz", headers=headers).status_code == 200


def test_a_stranger_s_body_is_not_read(guarded, friend):
    before = metrics(friend)["toktier_received_bytes_total",]
    with httpx.Client(base_url=guarded.url, timeout=60) as client:
        answer = client.post("/tokenize", content=(b" " * 65536 for _ in range(400)))
    assert answer.status_code == 401
    assert metrics(friend)["toktier_received_bytes_total",] == before


def test_with_the_token_all_goes(guarded, friend, o200k):
    assert friend.post("/tokenize", json={"prompt": "hello"}, headers={"host": "any.example"}).status_code == 200
    assert (
        friend.post("/tokenize", json={"prompt": "a"}, headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
    )
    with Client(guarded.url, token=TOKEN) as client:
        assert client.session("mine", "hello").ids.tolist() == o200k.encode("hello").tolist()
    with Client(guarded.url) as client, pytest.raises(ServiceError, match="401 unauthorized"):
        client.session("mine", "hello")


def test_the_token_is_nowhere_to_be_seen(guarded, friend):
    friend.get("/sessions/x", headers={"authorization": f"Bearer {TOKEN}"})
    assert TOKEN not in guarded.log.read_text()
    with open(f"/proc/{guarded.process.pid}/cmdline", "rb") as file:
        assert TOKEN.encode() not in file.read()
    assert TOKEN not in repr(toktier.serve.Settings(token=TOKEN))


def test_the_verifier_is_killed_and_comes_back(guarded, friend, o200k):
    friend.post("/tokenize", json={"prompt": "warm up"})
    until(lambda: metrics(friend)["toktier_verifier_total", "checked"] >= 1, "a check")
    before = metrics(friend)
    workers = guarded.children()
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    for k in range(20):  # requests do not notice
        text = f"{TEXTS['greek'][: 50 * k]} {k}"
        assert friend.post("/tokenize", json={"prompt": text}).json()["tokens"] == o200k.encode(text).tolist()
    checked = before["toktier_verifier_total", "checked"]
    until(lambda: metrics(friend)["toktier_verifier_total", "checked"] > checked, "a check by a new worker")
    after = metrics(friend)
    assert after["toktier_verifier_total", "restarts"] > before["toktier_verifier_total", "restarts"]
    assert after["toktier_verifier_total", "mismatched"] == 0


def test_more_than_it_can_do_is_refused_and_later_taken(guarded, friend):
    head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    waiting = [socket.create_connection(("127.0.0.1", guarded.port), timeout=60) for _ in range(2)]
    for connection in waiting:
        connection.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
    until(lambda: metrics(friend)["toktier_requests_in_flight",] >= 3, "two requests under way")  # and this one
    refused = friend.post("/tokenize", json={"prompt": "a"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert friend.get("/healthz").status_code == 200
    for connection in waiting:
        connection.close()
    until(lambda: friend.post("/tokenize", json={"prompt": "a"}).status_code == 200, "a place")


def test_a_client_waits_for_a_busy_service(guarded, o200k):
    head = f"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    waiting = [socket.create_connection(("127.0.0.1", guarded.port), timeout=60) for _ in range(2)]
    for connection in waiting:
        connection.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
    timer = threading.Timer(0.5, lambda: [connection.close() for connection in waiting])
    timer.start()
    with Client(guarded.url, token=TOKEN, patience=WAIT) as client:
        session = client.session("patient", "the build pipe")
        session.append("line")
        assert session.ids.tolist() == o200k.encode("the build pipeline").tolist()
    timer.join()


# -- starts that are refused -------------------------------------------------------------------------------------------


def refused(*arguments, **environment):
    """Exit status and stderr of a service that must not start."""
    clean = {k: v for k, v in os.environ.items() if k != "TOKTIER_TOKEN"}
    done = subprocess.run(
        [sys.executable, "-m", "toktier.cli", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT,
        env={**clean, **environment},
    )
    return done.returncode, done.stderr


def test_ctrl_c_ends_it_too(tmp_path):
    service = Service(tmp_path, "-p", "0", "--verify-rate", "0")
    service.process.send_signal(signal.SIGINT)
    assert service.stop() == 130
    assert "Traceback" not in service.log.read_text()


def test_no_start_that_is_open_to_others_by_oversight(guarded):
    status, says = refused("--host", "0.0.0.0")
    assert status == 1
    assert "--allow-anonymous" in says
    assert "TOKTIER_TOKEN" in says
    status, says = refused("--host", "0.0.0.0", TOKTIER_TOKEN="short")
    assert (status, "16 printable" in says) == (1, True)
    status, says = refused("-p", str(guarded.port))
    assert (status, f"port {guarded.port}" in says) == (1, True)
