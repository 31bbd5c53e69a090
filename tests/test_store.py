"""The store: exact for every name, bounded, counted, and not to be fooled by what is on disk."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from test_session import NASTY, pair

from toktier.errors import InputError, InputTypeError, RecordError, SessionClosedError, SessionError
from toktier.session import Session, SessionStore


@pytest.fixture(params=["memory", "disk"])
def path(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "sessions.db"


def held(store):
    return sum(e.session.nbytes for e in store._entries.values() if e.session is not None)


def test_names_do_not_mix_and_memory_is_counted_exactly(path):
    tok, reference = pair("o200k")
    rng = random.Random(3)
    texts: dict[str, str] = {}
    with SessionStore(tok, path=path, max_bytes=60_000, special_tokens="parse") as store:
        for _ in range(150):
            name = f"s{rng.randrange(12)}"
            texts[name] = texts.get(name, "")[: rng.randint(0, 3000)] + "".join(rng.choices(NASTY, k=40))
            session = store.get_or_create(name, texts[name])
            assert session.ids.tolist() == list(reference(texts[name]))
            if rng.random() < 0.3:
                texts[name] += "zz"
                session.append("zz")
            if rng.random() < 0.1:
                session.ends  # noqa: B018 - builds an array, which counts
            assert store.nbytes == held(store)
            store._tidy()
            assert store.nbytes <= 60_000
        stats = store.stats()
        assert stats["evictions"] > 0
        assert stats["hits"] + stats["misses"] == 150
        assert stats["full_encodes"] >= stats["misses"]
        if path is not None:
            assert stats["loads"] > 0
            assert all(store.get(name).text == text for name, text in texts.items())


def test_a_forgotten_session_is_made_anew(path):
    tok, _ = pair("o200k")
    with SessionStore(tok, path=path, ttl=0.05) as store:
        store.get_or_create("a", "hello")
        assert "a" in store
        assert store.get("a").text == "hello"
        time.sleep(0.1)
        assert "a" not in store
        assert store.get("a") is None
        assert store.get_or_create("a", "hello you").last_patch.start == 0
        time.sleep(0.1)
        store.get_or_create("b", "x")
        store.sweep()
        assert store.ids() == ["b"]
        assert store.stats()["sessions"] == 1


def test_the_one_used_longest_ago_goes_first():
    tok, _ = pair("o200k")
    store = SessionStore(tok)
    for name in "abc":
        store.get_or_create(name, "text " * 200)
    store.get("a")
    store.max_bytes = int(store.nbytes * 0.8)
    store._tidy()
    assert sorted(store.ids()) == ["a", "c"]


def test_put_delete_and_wrong_use(path):
    tok, _ = pair("o200k")
    other, _ = pair("cl100k")
    with SessionStore(tok, path=path) as store:
        session = store.get_or_create("a", "hello")
        store.put("b", session.fork())
        store.get("b").append(" you")
        assert (store.get("a").text, store.get("b").text) == ("hello", "hello you")
        assert store.delete("b")
        assert not store.delete("b")
        assert store.get("b") is None
        with pytest.raises(InputError, match="another tokenizer"):
            store.put("c", other.session("x"))
        with pytest.raises(InputError, match="fork"):
            store.put("c", session)
        for name, error in (("", InputError), (7, InputTypeError)):
            with pytest.raises(error, match="id"):
                store.get(name)
        with pytest.raises(InputTypeError, match="text"):
            store.get_or_create("a", b"bytes")
        session.close()
        assert store.get_or_create("a", "again").text == "again"
    with pytest.raises(SessionError, match="closed"):
        store.get("a")
    for option in ({"ttl": 0}, {"max_bytes": -1}, {"repair": "no"}):
        with pytest.raises(InputError, match=next(iter(option))):
            SessionStore(tok, **option)


def test_an_error_leaves_the_stored_session_as_it_was(path):
    tok, _ = pair("gpt2")
    with SessionStore(tok, path=path) as store:
        store.get_or_create("a", "hello")
        with pytest.raises(InputError):
            store.get_or_create("a", "hello \ud83e")
        with pytest.raises(InputError):
            store.get_or_create("b", "\ud83e")
        assert store.get("a").text == "hello"
        assert store.get("b") is None


def test_two_threads_on_one_session_interleave_whole_appends():
    tok, reference = pair("o200k")
    session = tok.session("")
    start = threading.Barrier(2)

    def work(text):
        start.wait()
        for _ in range(100):
            session.append(text)

    threads = [threading.Thread(target=work, args=(t,)) for t in ("alpha " * 5, "beta " * 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = session.text
    assert text.replace("alpha " * 5, "A").replace("beta " * 5, "B").strip("AB") == ""
    assert len(text) == 100 * (30 + 25)
    assert session.ids.tolist() == list(reference(text))


def test_many_threads_on_few_names(path):
    tok, reference = pair("o200k")
    errors = []
    store = SessionStore(tok, path=path, max_bytes=30_000)

    def work(seed):
        rng = random.Random(seed)
        try:
            for k in range(40):
                text = f"system prompt {'x ' * 300} user {rng.randrange(5)} {seed} turn {k}"
                session = store.get_or_create(f"n{seed}", text)
                assert session.ids.tolist() == list(reference(text))
                shared = store.get("shared") or store.get_or_create("shared", "s")
                try:
                    shared.append(f" {seed}")
                except SessionError:  # somebody else was faster, or it was dropped
                    continue
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    shared = store.get("shared")
    assert shared is None or shared.ids.tolist() == list(reference(shared.text))
    assert store.nbytes == held(store)
    store.close()


def test_closing_at_any_moment():
    tok, _ = pair("o200k")
    rng = random.Random(5)
    for _ in range(50):
        session = tok.session("start")
        closer = threading.Timer(rng.random() * 0.002, session.close)
        closer.start()
        try:
            for _ in range(40):
                session.append(" more")
        except SessionClosedError:
            pass
        closer.join()
        assert session.closed


def test_records_that_are_not_whole_are_refused():
    tok, _ = pair("o200k")
    other, _ = pair("cl100k")
    session = tok.session("the build pipeline \ud83e 12", special_tokens="parse")
    session.extend_ids([5, 6])
    data = session.to_bytes()
    copy = Session.from_bytes(tok, data)
    for one, two in ((session, copy), (session.fork(), copy.fork())):
        assert (one.text, one.ids.tolist(), one.ends.tolist()) == (two.text, two.ids.tolist(), two.ends.tolist())
        assert one.append("x").ids.tolist() == two.append("x").ids.tolist()
    for k in range(0, len(data), 5):
        for bad in (data[:k], data[:k] + bytes([data[k] ^ 4]) + data[k + 1 :]):
            with pytest.raises(RecordError):
                Session.from_bytes(tok, bad)
    with pytest.raises(RecordError, match="another tokenizer"):
        Session.from_bytes(other, data)
    with pytest.raises(RecordError, match="bytes"):
        Session.from_bytes(tok, "text")


def test_damage_on_disk_is_refused_and_replaced(tmp_path):
    tok, reference = pair("o200k")
    path = tmp_path / "sessions.db"
    text = "the build pipeline runs. " * 900
    for damage in (
        "UPDATE chunk SET data = substr(data, 1, 200) WHERE number = 1",
        "DELETE FROM chunk WHERE number = 2",
        "UPDATE chunk SET data = (SELECT c.data FROM chunk c WHERE c.number = 2) WHERE number = 1",
        "UPDATE session SET version = version + 1",
        "UPDATE session SET chunks = substr(chunks, 9)",
    ):
        with SessionStore(tok, path=path) as store:
            store.get_or_create("a", text)
        with sqlite3.connect(path) as db:
            assert db.execute(damage).rowcount > 0
        db.close()
        with SessionStore(tok, path=path) as store:
            with pytest.raises(RecordError):
                store.get("a")
            session = store.get_or_create("a", text + "x")
            assert session.ids.tolist() == list(reference(text + "x"))
            assert store.stats()["refused"] == 2
            store.delete("a")


def test_tokenizers_share_a_file_and_nothing_else(tmp_path):
    (one, first), (two, second) = pair("o200k"), pair("cl100k")
    path = tmp_path / "sessions.db"
    with SessionStore(one, path=path) as a, SessionStore(two, path=path) as b:
        a.get_or_create("x", "doInBackground")
        assert b.get("x") is None
        b.get_or_create("x", "doInBackground 12")
        assert a.get("x").ids.tolist() == list(first("doInBackground"))
        assert b.get("x").ids.tolist() == list(second("doInBackground 12"))


def test_the_later_of_two_writers_is_told(tmp_path):
    tok, reference = pair("o200k")
    path = tmp_path / "sessions.db"
    with SessionStore(tok, path=path) as one, SessionStore(tok, path=path) as two:
        one.get_or_create("a", "hello")
        mine, theirs = one.get("a"), two.get("a")
        mine.append(" you")
        with pytest.raises(SessionError, match="changed elsewhere"):
            theirs.append(" all")
        assert theirs.closed
        assert two.get_or_create("a", "hello you all").ids.tolist() == list(reference("hello you all"))
        assert one.get_or_create("a", "hello you two").ids.tolist() == list(reference("hello you two"))
        assert two.get("a").text == "hello you two"


WRITER = """
    import sys
    sys.path[:0] = {paths!r}
    from test_session import pair
    from toktier.session import SessionStore

    tok, _ = pair("o200k")
    store = SessionStore(tok, path={path!r})
    text = "turn"
    for k in range(100_000):
        text = text[-3000:] + f" {{k}} the build pipeline"
        store.get_or_create("a", text)
        print(k, flush=True)
"""


def test_death_of_the_process_loses_nothing_committed(tmp_path):
    tok, reference = pair("o200k")
    path = tmp_path / "sessions.db"
    code = textwrap.dedent(WRITER.format(paths=[str(Path(__file__).parent)], path=str(path)))
    for rounds in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ
        ) as writer:
            for last in writer.stdout:
                if int(last) >= 30 + 11 * rounds:
                    break
            writer.send_signal(signal.SIGKILL)
            done = max([int(last), *(int(line) for line in writer.stdout if line.strip().isdigit())])
        with SessionStore(tok, path=path) as store:
            session = store.get("a")
            assert session.text.endswith((f" {done} the build pipeline", f" {done + 1} the build pipeline"))
            assert session.ids.tolist() == list(reference(session.text))
            session.append(" more")


@pytest.fixture
def unopenable(tmp_path):
    """Paths that no store can have, by what is said of them."""
    (tmp_path / "junk").write_bytes(b"my notes of last year\n" * 300)
    (tmp_path / "file").touch()
    database = sqlite3.connect(tmp_path / "newer.db")
    database.execute("PRAGMA user_version = 9")
    database.close()
    database = sqlite3.connect(tmp_path / "notes.db")
    database.execute("CREATE TABLE notes (note TEXT)")
    database.close()
    return {
        "is a folder: name a file in it": tmp_path,
        r"there is no folder '.*no': make it first": tmp_path / "no" / "x.db",
        "'.*file' is no folder: name a file in a folder": tmp_path / "file" / "x.db",
        "is not a file of sessions: name one that is not there yet": tmp_path / "junk",
        "is not a file of sessions: .* one that a store has made": tmp_path / "notes.db",
        "is of format 9, and this toktier writes 1: use another file": tmp_path / "newer.db",
    }


def test_a_path_that_cannot_be_opened_is_named_and_nothing_stays_open(unopenable, monkeypatch):
    tok, _ = pair("o200k")
    junk = unopenable["is not a file of sessions: name one that is not there yet"]
    before, opened, connect = junk.read_bytes(), [], sqlite3.connect

    class Connection(sqlite3.Connection):
        def close(self):
            opened.remove(self)
            super().close()

    def connected(*args, **options):
        opened.append(connect(*args, factory=Connection, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    for says, path in unopenable.items():
        for given in (path, str(path)):
            with pytest.raises(SessionError, match=says) as error:
                SessionStore(tok, path=given)
            assert f"path={str(path)!r}" in str(error.value)
            assert not opened
    assert junk.read_bytes() == before
    assert not (junk.parent / "no").exists()


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        (5, InputTypeError, "path must be a str or a Path, not int: name a file"),
        (b"x.db", InputTypeError, "path must be a str or a Path, not bytes"),
        ("", InputError, "path='' names no file: leave it out to keep the sessions in memory"),
        (":memory:", InputError, "path=':memory:' names no file: leave it out"),
        ("x\0.db", InputError, "names no file"),
    ],
)
def test_a_path_that_is_none_is_refused(path, error, says):
    with pytest.raises(error, match=says):
        SessionStore(pair("o200k")[0], path=path)
