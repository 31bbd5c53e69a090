"""Launches that several requests share: counted, in order, and nobody suffers from what another one sent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import families
import pytest
import tier_parts
from tier_parts import SMALL

from toktier import device
from toktier.errors import InputError, InputTypeError, SpecialTokenError
from toktier.testing.device_faults import failing_device, held_device
from toktier.tier import DeadlineError, Thresholds, Tier

NAME = "llama3"
TEXT = families.texts()["english"].encode("ascii", "ignore").decode()
TEXTS = [TEXT[100 * k : 100 * k + 100 + 7 * k] for k in range(8)]


@pytest.fixture(scope="module")
def tok():
    return tier_parts.load(NAME)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(16) as made:
        yield made


def until(condition):
    """Wait for another thread; the test's own timeout is what ends it otherwise."""
    tick = threading.Event()
    while not condition():
        tick.wait(0.005)


def waiting(tier, count):
    until(lambda: tier.stats()["queue"]["launching"] == count)


@contextlib.contextmanager
def company(tier):
    """A request that stays in the tier, and for which texts wait: it might become a text for the device, too."""
    begun, go = threading.Event(), threading.Event()
    stay = {"create": True, "check": lambda session: begun.set() or go.wait()}
    thread = threading.Thread(target=tier.append, args=("company", "x"), kwargs=stay)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        go.set()
        thread.join()


def behind_a_held_launch(tier, tok, pool, calls):
    """The results of calls that all wait while one launch runs: they were brought in this order."""
    with held_device(tok) as held:
        first = pool.submit(tier.encode, TEXT[:300])
        held.waiting.wait()
        futures = []
        for k, call in enumerate(calls):
            futures.append(pool.submit(call))
            until(lambda k=k: futures[k].done() or tier.stats()["queue"]["launching"] > k - done_among(futures[:k]))
        held.release()
        assert first.result().batch == 1
    return futures


def done_among(futures):
    return sum(f.done() for f in futures)


def test_texts_that_wait_share_a_launch(tok, pool):
    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        tier.encode(TEXT[:300])
        before, launches = device.trace_count(), tier.stats()["batches"]["launches"]
        calls = [lambda t=t: tier.encode(t) for t in TEXTS]
        calls += [lambda t=t, k=k: tier.encode(t, session=f"s{k}", special_tokens="text") for k, t in enumerate(TEXTS)]
        answers = [f.result() for f in behind_a_held_launch(tier, tok, pool, calls[:12])]
        for text, answer in zip([*TEXTS, *TEXTS], answers, strict=False):
            assert answer.ids.tolist() == tier_parts.want(NAME, text)
            assert (answer.path, answer.batch) == ("device", 12)
            assert answer.queued <= answer.seconds
        batches = tier.stats()["batches"]
        assert batches["launches"] - launches == 2
        assert (batches["requests"], batches["largest"]) == (14, 12)
        assert device.trace_count() == before
        for k, text in enumerate(TEXTS[:4]):  # the ends that came with the ids serve the sessions
            after = tier.append(f"s{k}", " and more")
            assert (after.path, after.ids.tolist()) == ("session", tier_parts.want(NAME, text + " and more"))


def test_a_launch_is_bounded_and_keeps_the_order(tok, pool):
    size = len(TEXTS[0])
    with Tier(tok, thresholds=SMALL, max_wait=0, max_batch_bytes=3 * size + 2) as tier:
        futures = behind_a_held_launch(tier, tok, pool, [lambda: tier.encode(TEXTS[0])] * 7)
        assert [f.result().batch for f in futures] == [3, 3, 3, 3, 3, 3, 1]
        assert tier.stats()["batches"] == {"launches": 4, "requests": 8, "largest": 3}
        assert tier.encode(TEXT[:900]).path == "device"  # a longer one is launched alone


def test_texts_that_come_within_max_wait_share_a_launch(tok, pool):
    total = sum(len(t) + 1 for t in TEXTS)
    with Tier(tok, thresholds=SMALL, max_wait=60, max_batch_bytes=total) as tier:  # full is sooner than a minute
        with company(tier):
            answers = list(pool.map(tier.encode, TEXTS))
        assert [a.batch for a in answers] == [8] * 8
        assert tier.stats()["batches"] == {"launches": 1, "requests": 8, "largest": 8}


def test_who_is_alone_does_not_wait(tok):
    with Tier(tok, thresholds=SMALL, max_wait=3600) as tier:
        assert tier.encode(TEXT[:300]).path == "device"


def test_tokenizers_do_not_share_a_launch(tok, pool):
    with Tier({n: tier_parts.load(n) for n in tier_parts.ON_DEVICE}, thresholds=SMALL, max_wait=0) as tier:
        names = [*tier_parts.ON_DEVICE] * 3
        futures = behind_a_held_launch(tier, tok, pool, [lambda n=n: tier.encode(TEXTS[0], tokenizer=n) for n in names])
        for name, future in zip(names, futures, strict=True):
            answer = future.result()
            assert (answer.tokenizer, answer.batch) == (name, 3)
            assert answer.ids.tolist() == tier_parts.want(name, TEXTS[0])
        assert tier.stats()["batches"]["launches"] == 4


def test_a_shorter_text_joins_a_launch_that_waits_but_never_waits_alone(tok, pool):
    with Tier(tok, thresholds=Thresholds(100, 20), max_wait=0) as tier:
        assert tier.encode(TEXT[:50]).path == "host"
        calls = [lambda: tier.encode(TEXT[:150]), lambda: tier.encode(TEXT[:50]), lambda: tier.encode(TEXT[:10])]
        long, short, tiny = [f.result() for f in behind_a_held_launch(tier, tok, pool, calls)]
        assert [(a.path, a.batch) for a in (long, short, tiny)] == [("device", 2), ("device", 2), ("host", 1)]
        assert "joined" in short.reason
        assert short.ids.tolist() == tier_parts.want(NAME, TEXT[:50])


def test_a_bad_text_fails_alone(tok, pool):
    special = next(a.content for a in tok.spec.added if a.special)
    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        bad = [
            (lambda: tier.encode(TEXT[:100] + "\ud800"), InputError),
            (lambda: tier.encode(TEXT[:100].encode()), InputTypeError),
            (lambda: tier.encode(TEXT[:100] + special, special_tokens="forbid"), SpecialTokenError),
            (lambda: tier.append("s", TEXT[:100] + "\ud800", create=True), InputError),
        ]
        calls = []
        for k, (call, _) in enumerate(bad):
            calls += [lambda k=k: tier.encode(TEXTS[k]), call]
        futures = behind_a_held_launch(tier, tok, pool, calls)
        for k, (_, error) in enumerate(bad):
            with pytest.raises(error):
                futures[2 * k + 1].result()
            answer = futures[2 * k].result()
            assert (answer.batch, answer.ids.tolist()) == (4, tier_parts.want(NAME, TEXTS[k]))
        stats = tier.stats()
        assert stats["errors"] == {"InputError": 2, "InputTypeError": 1, "SpecialTokenError": 1}
        assert stats["batches"]["launches"] == 2
        assert stats["queue"]["inside"] == 0


def test_a_launch_that_fails_is_tried_text_by_text(tok, pool):
    with Tier(tok, thresholds=SMALL, max_wait=60, max_batch_bytes=sum(len(t) + 1 for t in TEXTS[:3])) as tier:
        planted = ArithmeticError("planted")
        with company(tier), failing_device(tok, times=2, error=planted) as failures:
            futures = [pool.submit(tier.encode, text) for text in TEXTS[:3]]
            errors = [f.exception() for f in futures]
        assert failures.raised == 2  # all of them together, then the first alone
        assert [type(e) for e in errors if e is not None] == [ArithmeticError]
        for text, future in zip(TEXTS, futures, strict=False):
            if future.exception() is None:
                assert (future.result().batch, future.result().ids.tolist()) == (1, tier_parts.want(NAME, text))
        assert tier.stats()["spills"] == {}


def test_no_request_waits_for_a_compilation(tok, pool):
    """What needs another program than those that have run goes to the host; joined texts that do are launched apart."""
    fits, larger = (TEXT * 20)[: (1 << 14) - 10], "x" * ((1 << 18) + 10)
    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        before = device.trace_count()
        assert tier.encode(fits).path == "device"
        answer = tier.encode(larger)
        assert (answer.path, answer.ids.tolist()) == ("host", tier_parts.want(NAME, larger))
        assert "for 1048576 bytes is not compiled" in answer.reason
        assert tier.stats()["spills"] == {"refused": 1}
        for future in behind_a_held_launch(tier, tok, pool, [lambda: tier.encode(fits)] * 2):
            assert (future.result().path, future.result().ids.tolist()) == ("device", tier_parts.want(NAME, fits))
        assert device.trace_count() == before


def test_what_would_wait_too_long_spills_to_the_host(tok, pool):
    with Tier(tok, thresholds=SMALL, max_wait=0, max_waiting_bytes=250) as tier:
        texts = [TEXT[:200], TEXT[:100], TEXT[50:90]]
        calls = [lambda t=t: tier.encode(t) for t in texts]
        waited, spilled, fits = (f.result() for f in behind_a_held_launch(tier, tok, pool, calls))
        assert (waited.path, spilled.path, fits.path) == ("device", "host", "device")
        assert "spilled to the host: 200 bytes wait" in spilled.reason
        assert spilled.ids.tolist() == tier_parts.want(NAME, TEXT[:100])
        assert tier.stats()["spills"] == {"backpressure": 1}


def test_a_request_whose_time_is_over_leaves_the_queue(tok, pool):
    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        tier.encode("a session", session="s")
        with held_device(tok) as held:
            first = pool.submit(tier.encode, TEXT[:300])
            held.waiting.wait()
            with pytest.raises(DeadlineError, match="timeout"):
                tier.append("s", TEXT[:200], timeout=0.01)
            with pytest.raises(DeadlineError):
                asyncio.run(tier.encode_async(TEXT[:200], timeout=0.01))
            blocked = pool.submit(tier.append, "s", TEXT[:200])
            waiting(tier, 1)
            with pytest.raises(DeadlineError):  # the session itself is in use
                tier.append("s", " x", timeout=0.01)
            with pytest.raises(DeadlineError):
                asyncio.run(tier.append_async("s", " x", timeout=0.01))
            held.release()
            assert first.result().path == "device"
        assert blocked.result().ids.tolist() == tier_parts.want(NAME, "a session" + TEXT[:200])
        stats = tier.stats()
        assert (stats["late"], stats["batches"]["requests"]) == (4, 2)


def test_a_request_whose_launch_runs_is_given_up_at_its_time(tok):
    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        tier.encode("a session", session="s")
        with held_device(tok) as held:
            with pytest.raises(DeadlineError):
                tier.append("s", TEXT[:200], timeout=0.05)
            held.release()
        assert tier.append("s", " goes on").ids.tolist() == tier_parts.want(NAME, "a session goes on")


def test_cancelled_requests_do_nothing_that_was_not_begun(tok):
    async def run(tier):
        await tier.encode_async("a session", session="s")
        with held_device(tok) as held:
            running = asyncio.ensure_future(tier.append_async("s", " running" + TEXT[:100]))
            await asyncio.to_thread(held.waiting.wait)
            queued = [asyncio.ensure_future(tier.append_async("s", " queued")) for _ in range(3)]
            launch = asyncio.ensure_future(tier.encode_async(TEXT[:300]))  # waits for the launch that runs
            await asyncio.to_thread(waiting, tier, 1)
            for task in (*queued, launch):
                task.cancel()
            results = await asyncio.gather(*queued, launch, return_exceptions=True)
            assert [type(r) for r in results] == [asyncio.CancelledError] * 4
            await asyncio.to_thread(waiting, tier, 0)
            held.release()
            answer = await running
        assert answer.ids.tolist() == tier_parts.want(NAME, "a session running" + TEXT[:100])
        after = await tier.append_async("s", " after")
        assert after.ids.tolist() == tier_parts.want(NAME, "a session running" + TEXT[:100] + " after")
        stats = tier.stats()
        assert (stats["cancelled"], stats["batches"]["requests"]) == (4, 1)

    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        asyncio.run(run(tier))


def test_a_cancelled_request_that_runs_is_finished(tok):
    async def run(tier):
        await tier.encode_async("a session", session="s")
        with held_device(tok) as held:
            running = asyncio.ensure_future(tier.append_async("s", TEXT[:100]))
            await asyncio.to_thread(held.waiting.wait)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            held.release()
        # in order behind the one that runs on, which finishes or, its launch given up, changes nothing
        return await tier.append_async("s", "!")

    with Tier(tok, thresholds=SMALL, max_wait=0) as tier:
        answer = asyncio.run(run(tier))
        assert answer.ids.tolist() == tier_parts.want(NAME, "a session" + TEXT[:100] + "!")
