"""Sessions whose time is over go, those in use stay, and no request waits for more than a few of them."""

from __future__ import annotations

import sqlite3
import time

import pytest
from test_session import pair
from test_tier_batching import until

from toktier.errors import SessionError
from toktier.session import SessionStore, disk
from toktier.tier import Tier

TTL = 60.0
MANY = 300


@pytest.fixture(params=["memory", "disk"])
def path(request, tmp_path):
    return None if request.param == "memory" else tmp_path / "sessions.db"


@pytest.fixture
def later(monkeypatch):
    """Lets seconds pass."""
    real, ahead = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])

    def pass_by(seconds):
        ahead[0] += seconds

    return pass_by


@pytest.fixture(scope="module")
def tok():
    return pair("o200k")[0]


def filled(tok, path):
    store = SessionStore(tok, ttl=TTL, path=path)
    for k in range(MANY):
        store.get_or_create(f"s{k:03}", "hello")
    return store


def test_a_request_forgets_a_few_sessions_and_requests_forget_all(tok, path, later):
    with filled(tok, path) as store:
        later(2 * TTL)
        statements = []
        if path is not None:
            store._disk._idle[0][1].set_trace_callback(statements.append)
        store.get_or_create("new", "text")
        assert 0 < store.stats()["expirations"] <= 4
        assert len(statements) < 20
        calls = 0
        while store.ids() != ["new"]:
            store.get("new")
            calls += 1
        assert calls <= MANY
        assert store.stats()["expirations"] == MANY
        store.get("new")  # finds the end of the file
        statements.clear()
        store.get("new")  # nothing is due
        assert len(statements) <= 1


def test_a_sweep_forgets_all_at_once(tok, path, later):
    with filled(tok, path) as store:
        later(0.9 * TTL)
        store.get("s007")
        later(0.2 * TTL)
        assert store.sweep() == MANY - 1
        assert store.ids() == ["s007"]


def test_a_session_that_is_only_read_is_in_use(tok, path, later):
    with SessionStore(tok, ttl=TTL, path=path) as store:
        store.get_or_create("read", "hello")
        store.get_or_create("same", "hello")
        for _ in range(6):
            later(0.4 * TTL)
            assert store.get("read") is not None
            assert store.get_or_create("same", "hello").last_patch.start > 0
            store.sweep()
    with SessionStore(tok, ttl=TTL, path=path) as store:
        assert (store.get("read") is None) == (path is None)


def test_a_session_that_its_holder_changes_is_in_use(tok, path, later):
    with SessionStore(tok, ttl=TTL, path=path) as store:
        session = store.get_or_create("a", "hello")
        for _ in range(6):
            later(0.4 * TTL)
            session.append(" you")
            store.sweep()
        assert store.get("a") is session


def test_a_session_that_another_process_uses_stays(tok, tmp_path, later):
    file = tmp_path / "sessions.db"
    with SessionStore(tok, ttl=TTL, path=file) as one, SessionStore(tok, ttl=TTL, path=file) as two:
        one.get_or_create("a", "hello")
        later(0.9 * TTL)
        theirs = two.get("a")
        theirs.append(" you")
        later(0.5 * TTL)
        assert one.get("a").text == "hello you"
        theirs.append(" all")  # nobody took it away
        assert one.stats()["expirations"] == 0


def test_a_sweep_that_fails_does_not_fail_the_request(tok, tmp_path, later, monkeypatch):
    monkeypatch.setattr(disk, "_WAIT", 0.01)
    file = tmp_path / "sessions.db"
    with SessionStore(tok, ttl=TTL, path=file) as store:
        store.get_or_create("a", "hello")
        store.get_or_create("b", "hello")
        later(0.9 * TTL)
        store.get("a")
        later(0.5 * TTL)
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # so that nobody else can write
        assert store.get("a").text == "hello"
        with pytest.raises(SessionError, match="locked"):
            store.sweep()
        other.execute("ROLLBACK")
        other.close()
        store.sweep()
        assert store.ids() == ["a"]


def test_a_new_session_costs_the_same_however_many_are_on_disk(tok, tmp_path, monkeypatch):
    steps, real = [0], sqlite3.connect

    def counting(*args, **options):
        db = real(*args, **options)
        db.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 10)  # every 10 instructions of SQLite
        return db

    monkeypatch.setattr(sqlite3, "connect", counting)
    costs = []
    with Tier(tok, path=tmp_path) as tier:
        tier.encode("hello", session="text", special_tokens="text")
        for k in range(2 * MANY):
            before = steps[0]
            tier.encode("hello", session=f"s{k}")
            costs.append(steps[0] - before)
    assert max(costs[-50:]) < 1.2 * max(costs[50:100])


def test_a_tier_forgets_without_a_request(tok, tmp_path):
    with Tier(tok, ttl=1.5, path=tmp_path) as tier:
        sweeper = tier._desk._sweeper
        tier.encode("hello")
        assert sweeper._thread is None
        tier.encode("hello", session="plain")
        tier.encode("hello", session="text", special_tokens="text")  # in a store that nobody asks again
        sessions = tier._desk.sessions[0]
        tier.quarantine(tier.default, "by hand")
        tier.session_state("plain")
        assert sessions._before
        until(lambda: not any(store.ids() for store in sessions.stores))
        until(lambda: not sessions._before)
        assert tier.stats()["sessions"]["sessions"] == 0
    assert not sweeper._thread.is_alive()


def test_a_session_that_cannot_be_moved_stays_where_it_is(tok, tmp_path, monkeypatch):
    with Tier(tok, path=tmp_path) as tier:
        before = tier.encode("hello", session="s").ids.tolist()
        tier.quarantine(tier.default, "by hand")
        with monkeypatch.context() as broken:
            broken.setattr(disk.Disk, "create", lambda *_: (_ for _ in ()).throw(SessionError("no room")))
            with pytest.raises(SessionError, match="no room"):
                tier.append("s", " you")
        assert tier.append("s", " you").patch.start == len(before)
