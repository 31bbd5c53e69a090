"""What a tier goes through: a device that fails, full queues, a close under load, many threads, clocks that jump."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import families
import numpy as np
import pytest
import tier_parts
from test_tier_batching import company, until, waiting
from tier_parts import SMALL, Client

from toktier.errors import InputError
from toktier.session import Session
from toktier.testing.device_faults import failing_device, held_device
from toktier.tier import (
    DeadlineError,
    QueueFullError,
    Tier,
    TierClosedError,
    UnknownSessionError,
    Verifier,
)

NAME = "gptoss"
TEXT = families.texts()["english"]
DAY = 86400.0


@pytest.fixture(scope="module")
def tok():
    return tier_parts.load(NAME)


def exact(answer, text):
    assert answer.ids.tolist() == tier_parts.want(NAME, text)
    return answer


# -- the device ----------------------------------------------------------------------------------------------------


def test_out_of_memory_spills_to_the_host_and_the_device_comes_back(tok):
    with Tier(tok, thresholds=SMALL, max_wait=0, device_pause=0.2) as tier:
        exact(tier.encode("known", session="s"), "known")
        with failing_device(tok, times=1) as failures:
            first = exact(tier.append("s", TEXT[:200]), "known" + TEXT[:200])
            assert first.path == "session"  # repaired after all, on the host
            assert "ran out of memory" in first.reason
            second = exact(tier.encode(TEXT[:300]), TEXT[:300])
            assert "is tried again in" in second.reason
            assert second.path == "host"
            assert failures.raised == 1
            assert tier.stats()["device_paused"] > 0
            until(lambda: tier.stats()["device_paused"] == 0)
            assert exact(tier.encode(TEXT[:300]), TEXT[:300]).path == "device"
            assert failures.passed == 1
        assert tier.stats()["spills"] == {"memory": 1, "paused": 1}


def test_all_texts_of_a_launch_that_fails_spill_and_later_ones_do_not_wait_for_it(tok):
    total = sum(100 + k + 1 for k in range(6))
    with Tier(tok, thresholds=SMALL, max_wait=60, max_batch_bytes=total, device_pause=3600) as tier:
        texts = ["".join(TEXT[:90]) + "x" * (10 + k) for k in range(6)]
        with company(tier), failing_device(tok, "lost") as failures, ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(tier.encode, texts))
        for text, answer in zip(texts, answers, strict=True):
            assert exact(answer, text).path == "host"
            assert "CUDA_ERROR_LAUNCH_FAILED" in answer.reason
        assert failures.raised == 1
        assert exact(tier.encode(TEXT[:300]), TEXT[:300]).path == "host"
        assert tier.stats()["spills"] == {"failure": 6, "paused": 1}


def test_pauses_grow_while_it_fails_and_start_over_once_it_works(tok):
    with Tier(tok, thresholds=SMALL, max_wait=0, device_pause=0.01) as tier:
        pauses = []
        with failing_device(tok, times=4):
            while len(pauses) < 5:
                until(lambda: tier.stats()["device_paused"] == 0)
                exact(tier.encode(TEXT[:100]), TEXT[:100])
                pauses.append(tier._launcher._pause)
        assert pauses == [0.02, 0.04, 0.08, 0.16, 0.01]


def test_an_exception_in_the_middle_leaves_the_session_as_it_was(tok):
    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        client = Client(NAME, tier.append, "s")
        client.took(tier.encode("a session", session="s"), "a session")
        with failing_device(tok, times=1, error=ArithmeticError("planted")):
            with pytest.raises(ArithmeticError):
                tier.append("s", TEXT[:200])
            with pytest.raises(InputError):
                tier.append("s", "\ud800")
        assert tier.session_ids("s").tolist() == client.ids.tolist()
        client.took(tier.append("s", TEXT[:200]), "a session" + TEXT[:200])
        with failing_device(tok, error=ArithmeticError("planted")), pytest.raises(ArithmeticError):
            tier.encode(TEXT[:200], session="never made")
        with pytest.raises(UnknownSessionError):
            tier.session_ids("never made")
        assert tier.stats()["sessions"]["sessions"] == 1


# -- bounds and ends -----------------------------------------------------------------------------------------------


def test_a_full_tier_refuses_and_works_again_afterwards(tok):
    async def run(tier):
        with held_device(tok) as held:
            inside = [asyncio.ensure_future(tier.encode_async(TEXT[: 200 + k])) for k in range(3)]
            await asyncio.to_thread(held.waiting.wait)
            for call in (tier.encode_async("hello"), tier.append_async("s", "x", create=True)):
                with pytest.raises(QueueFullError, match="max_queue=3"):
                    await call
            with pytest.raises(QueueFullError):
                tier.encode("hello")
            held.release()
            for k, answer in enumerate(await asyncio.gather(*inside)):
                exact(answer, TEXT[: 200 + k])
        exact(await tier.encode_async("hello"), "hello")
        assert tier.stats()["rejected"] == 3

    with Tier(tok, thresholds=SMALL, max_wait=0, max_queue=3) as tier:
        asyncio.run(run(tier))


@pytest.mark.parametrize("timeout", [None, 0.05])
def test_close_under_load_loses_no_request(tok, timeout):
    """Every request ends in an exact answer or in TierClosedError, whether it was made in a thread or awaited."""
    others = set(threading.enumerate())  # such as those of a service that an earlier test left to the collector
    tier = Tier(tok, thresholds=SMALL, max_wait=0.001)
    outcomes: list[tuple[str, object]] = []
    begun = threading.Barrier(5)

    def client(k):
        begun.wait()
        for turn in range(400):
            text = TEXT[k : k + 20 + 5 * (turn % 30)]
            try:
                outcomes.append((text, tier.encode(text, session=None if turn % 2 else f"s{k}")))
            except TierClosedError as e:
                outcomes.append((text, e))
                return

    async def clients():
        async def one(k):
            text = TEXT[k : k + 20 + 5 * (k % 30)]
            try:
                outcomes.append((text, await tier.encode_async(text, session=None if k % 3 else f"a{k}")))
            except TierClosedError as e:
                outcomes.append((text, e))

        await asyncio.gather(*(one(k) for k in range(300)))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(3)]
    threads.append(threading.Thread(target=lambda: (begun.wait(), asyncio.run(clients()))))
    for thread in threads:
        thread.start()
    begun.wait()
    until(lambda: len(outcomes) > 20)
    with held_device(tok) as held:
        held.waiting.wait()
        closing = threading.Thread(target=tier.close, args=(timeout,))
        closing.start()
        until(lambda: tier._gate._shut)
        if timeout is not None:  # the device hangs, and still they are told
            until(lambda: any(isinstance(o, TierClosedError) for _, o in outcomes))
        held.release()
    for thread in (*threads, closing):
        thread.join()
    answered = [(text, o) for text, o in outcomes if not isinstance(o, TierClosedError)]
    for text, answer in answered:
        exact(answer, text)
    stats = tier.stats()
    assert stats["queue"] == {"inside": 0, "waiting": 0, "launching": 0}
    assert tier_parts.totals(stats)["requests"] == len(answered)
    assert len(outcomes) >= 300 + 3
    left = set(threading.enumerate()).difference(others)
    assert not [t for t in left if t.name.startswith("toktier-") and "verifier" not in t.name]
    with pytest.raises(TierClosedError):
        tier.encode("x")
    with pytest.raises(TierClosedError):
        asyncio.run(tier.encode_async("x"))


def test_close_in_no_time_fails_what_waits(tok):
    tier = Tier(tok, thresholds=SMALL, max_wait=0)
    with held_device(tok) as held, ThreadPoolExecutor(3) as pool:
        first = pool.submit(tier.encode, TEXT[:200])
        held.waiting.wait()
        second = pool.submit(tier.encode, TEXT[:300])
        waiting(tier, 1)
        closing = pool.submit(tier.close, 0)
        with pytest.raises(TierClosedError, match="before the request was served"):
            second.result()
        held.release()
        exact(first.result(), TEXT[:200])
        closing.result()


# -- many at once --------------------------------------------------------------------------------------------------


def test_threads_on_sixteen_sessions(tok):
    """Each thread changes its sessions in every way while the others do; every answer is checked on the spot."""
    with Tier(tok, thresholds=SMALL, max_wait=0.001, ttl=None) as tier:

        def user(k):
            rng = random.Random(k)
            clients = [Client(NAME, tier.append, f"{k}.{j}") for j in range(2)]
            for _ in range(40):
                client = rng.choice(clients)
                text, at, size = client.text, rng.randrange(len(TEXT) - 200), rng.choice((3, 10, 150))
                new, cut = TEXT[at : at + size], rng.randint(0, len(client.text))
                if not text or rng.random() < 0.2:
                    client.took(tier.encode(text[:cut] + new, client.session), text[:cut] + new)
                elif rng.random() < 0.3:
                    client.took(tier.edit(client.session, cut, len(text), new), text[:cut] + new)
                else:
                    client.took(tier.append(client.session, new), text + new)

        with ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(user, k) for k in range(8)]:
                done.result()
        stats = tier.stats()
        assert stats["sessions"]["sessions"] == 16
        assert tier_parts.totals(stats)["requests"] == 8 * 40
        assert stats["batches"]["requests"] == stats["paths"]["device"]["requests"]


def test_two_clients_of_one_session_get_patches_that_fit_together(tok):
    with Tier(tok) as tier:
        tier.encode("start", session="s")

        def client(name):
            return [tier.append("s", f" {name}{k}") for k in range(60)]

        async def awaiting():
            return list(await asyncio.gather(*(tier.append_async("s", f" c{k}") for k in range(60))))

        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(client, "a"), pool.submit(client, "b"), pool.submit(asyncio.run, awaiting())]
            answers = [answer for call in calls for answer in call.result()]
        ids = np.array(tier_parts.want(NAME, "start"), np.int32)
        for answer in sorted(answers, key=lambda a: a.served_bytes):  # as they were made: each makes the text longer
            patch = answer.patch
            ids = np.concatenate([ids[: patch.start], patch.ids, ids[patch.start + patch.removed :]])
            assert ids.tolist() == answer.ids.tolist()
        assert tier.session_ids("s").tolist() == ids.tolist()
        assert len({a.served_bytes for a in answers}) == 180


def test_two_who_make_a_session_with_other_options_get_one(tok):
    special = next(a.content for a in tok.spec.added if a.special)
    inside, go_on = threading.Event(), threading.Event()

    def hold(session):
        inside.set()
        assert go_on.wait(60)

    with Tier(tok) as tier, ThreadPoolExecutor(3) as pool:
        tier.encode("a store for these options", session="other", special_tokens="text")
        first = pool.submit(tier.append, "s", special, create=True, check=hold)
        assert inside.wait(60)
        second = pool.submit(tier.append, "s", special, create=True, special_tokens="text")
        third = pool.submit(tier.append, "s", special, create=True, special_tokens="text", timeout=0.05)
        with pytest.raises(DeadlineError):
            third.result()
        go_on.set()
        assert first.result().ids.tolist() == tier_parts.want(NAME, special)
        with pytest.raises(InputError, match="was made with"):
            second.result()
        assert tier.append("s", special).ids.tolist() == tier_parts.want(NAME, special * 2)
        assert tier.stats()["sessions"]["sessions"] == 2


# -- time, memory, disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_clock_that_jumps_forgets_no_session(tok, tmp_path, monkeypatch, jump):
    real = time.time
    with Tier(tok, ttl=60, path=tmp_path) as tier:
        tier.encode("on disk", session="s")
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        for store in tier._desk.sessions[0].stores:
            store.sweep()
        exact(tier.append("s", " still"), "on disk still")
        tier.encode("made after", session="t")
        assert tier._desk.sessions[0].stores[0]._disk.known("s")
        assert tier.stats()["sessions"]["expirations"] == 0
    monkeypatch.undo()
    with Tier(tok, ttl=60, path=tmp_path) as tier:  # found by a process whose clock is right
        exact(tier.append("s", " here"), "on disk still here")
        exact(tier.append("t", "!"), "made after!")


def test_a_session_stamped_by_a_wrong_clock_ages_from_now_on(tok, tmp_path, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 1000 * DAY)
    with Tier(tok, ttl=60, path=tmp_path) as tier:
        tier.encode("from the future", session="s")
    monkeypatch.undo()
    with Tier(tok, ttl=0.05, path=tmp_path) as tier:
        disk = tier._desk.sessions[0].stores[0]._disk
        assert disk.known("s")
        disk.expire()
        until(lambda: not disk.known("s"))
        with pytest.raises(UnknownSessionError):
            tier.append("s", "x")


def test_sessions_survive_the_tier_with_their_options(tok, tmp_path):
    special = next(a.content for a in tok.spec.added if a.special)
    with Tier(tok, path=tmp_path / "sessions.sqlite") as tier:
        tier.encode(f"a{special}", session="plain")
        text = tier.encode(f"a{special}", session="text", special_tokens="text")
        tier.encode("gone", session="gone")
        assert tier.delete("gone")
    with Tier(tok, path=tmp_path / "sessions.sqlite") as tier:
        assert (
            tier.append("text", special).ids.tolist()
            == tok.encode(f"a{special}{special}", special_tokens="text").tolist()
        )
        assert tier.append("plain", special).ids.tolist() == tok.encode(f"a{special}{special}").tolist()
        assert len(text.ids) > 2
        with pytest.raises(UnknownSessionError):
            tier.append("gone", "x")
        assert tier.stats()["sessions"]["loads"] == 2
        assert tier.delete("text")
        assert not tier.delete("text")


def test_memory_of_all_sessions_is_bounded_across_tokenizers():
    with Tier({n: tier_parts.load(n) for n in ("gptoss", "qwen3")}, max_session_bytes=60_000) as tier:
        for k in range(30):
            tier.encode(TEXT[k : k + 1000], session=f"s{k}", tokenizer=("gptoss", "qwen3")[k % 2])
            assert tier.stats()["sessions"]["nbytes"] <= 60_000
        stats = tier.stats()["sessions"]
        assert stats["evictions"] == 30 - stats["sessions"]
        exact(tier.append("s28", "!", "gptoss"), TEXT[28:1028] + "!")
        with pytest.raises(UnknownSessionError):
            tier.append("s0", "!", "gptoss")


def test_a_record_of_the_reference_is_not_taken_for_one_with_places():
    """A session that the reference encoded knows no places of tokens; restored elsewhere it is encoded afresh."""
    tok = tier_parts.load("llama3")
    text = "hello world, how are you"
    made = Session(tok, text, engine="reference", add_special_tokens=True)
    again = Session.from_bytes(tok, made.to_bytes())
    placed = Session.from_bytes(tok, tok.session(text, add_special_tokens=True).to_bytes())
    assert placed.ends.tolist() == again.ends.tolist()
    again.edit(8, 10, "XYZ")
    assert again.ids.tolist() == tier_parts.want("llama3", again.text, framed=True)


# -- the verifier --------------------------------------------------------------------------------------------------


def test_sessions_replayed_with_every_answer_verified():
    verifier = Verifier(rate=1.0, queue=100_000, max_bytes=1 << 30)
    names = ("llama3", "qwen3", "gptoss", "sentencepiece")
    texts = list(families.texts().values())
    with Tier({n: tier_parts.load(n) for n in names}, thresholds=SMALL, max_wait=0, verifier=verifier) as tier:
        for k, text in enumerate(texts):
            name = names[k % len(names)]
            tier.encode(text[:600], session=f"s{k}", tokenizer=name, add_special_tokens=name == "llama3" or None)
            for turn in range(8):
                tier.append(f"s{k}", text[600 + 40 * turn : 640 + 40 * turn], name)
            tier.update(f"s{k}", text[:200] + text[300:900], name)
            tier.encode(text[:150], tokenizer=name, add_special_tokens=True)
        assert verifier.wait(300)
        counts = verifier.stats()
        asked = 11 * len(texts)
        assert (counts["offered"], counts["checked"], counts["mismatched"]) == (asked, asked, 0)
        assert (counts["dropped"], counts["errors"]) == (0, 0)
        assert tier_parts.totals(tier.stats())["requests"] == asked


def test_a_mismatch_puts_the_tokenizer_on_the_reference(tok):
    verifier = Verifier(rate=1.0, quarantine=True, queue=100_000)
    twin = tier_parts.load("qwen3")
    with Tier({"a": tok, "b": tok, "c": twin}, verifier=verifier) as tier:
        client = Client(NAME, tier.append, "s")
        client.took(tier.encode("The pipe", session="s", tokenizer="a"), "The pipe")
        client.took(tier.append("s", "line", "b"), "The pipeline")
        assert verifier.wait(300)
        verifier.offer("a", "The pipeline", np.array([1, 2, 3], np.int32))  # a wrong result, as if delivered
        assert verifier.wait(300)
        assert verifier.stats()["mismatched"] == 1
        answer = client.took(tier.append("s", " is", "b"), "The pipeline is")  # equal tokenizers share the quarantine
        assert (answer.path, answer.scanned_bytes) == ("reference", 2 * len("The pipeline") + 3)
        assert "verifier" in answer.reason
        answer = client.took(tier.edit("s", 0, 3, "A", "a"), "A pipeline is")
        assert (answer.path, answer.scanned_bytes) == ("reference", 13)
        assert exact(tier.encode("hello", tokenizer="a"), "hello").path == "reference"
        assert tier.encode("hello", tokenizer="c").path == "host"
        assert set(tier.stats()["quarantined"]) == {"a", "b"}
        tier.release("a")
        answer = client.took(tier.append("s", " full", "a"), "A pipeline is full")
        assert answer.path == "session"
        assert client.took(tier.append("s", "!", "a"), "A pipeline is full!").scanned_bytes < 8
        tier.quarantine("a", "by hand")
        answer = client.took(tier.update("s", "A pipe", "a"), "A pipe")
        assert (answer.path, answer.reason) == ("reference", "quarantined: by hand")
        assert tier.stats()["sessions"]["sessions"] == 1
