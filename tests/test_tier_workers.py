"""The pool behind the asynchronous calls: order by key, bounded long jobs, nothing lost at the end."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest
from test_tier_batching import until

from toktier.tier import TierClosedError, switching
from toktier.tier.pace import Pace
from toktier.tier.workers import Workers


class Job:
    """A call that waits until it is let go."""

    def __init__(self, result=None):
        self.begun, self.go, self.result = threading.Event(), threading.Event(), result

    def __call__(self):
        self.begun.set()
        self.go.wait()
        return self.result


@pytest.fixture
def pool():
    made = Workers(2)
    made.left = 0

    def left():
        made.left += 1

    made.add = lambda call, key=None, long=False: made.submit(call, key, left, long)
    yield made
    made.close()
    made.join()


def test_jobs_of_a_key_run_in_order_and_keep_one_thread_busy(pool):
    done = []
    first = Job()
    futures = [pool.add(first, "k"), *(pool.add(lambda k=k: done.append(k), "k") for k in range(50))]
    first.begun.wait()
    other = pool.add(lambda: "other", "l")
    assert other.result() == "other"
    assert done == []
    futures[7].cancel()
    first.go.set()
    wait(futures)
    assert done == [k for k in range(50) if k != 6]
    pool.close()
    assert pool.left == 52  # the cancelled one, too


def test_long_jobs_leave_a_thread_to_short_ones(pool):
    long = [Job(k) for k in range(3)]
    futures = [pool.add(job, long=True) for job in long]
    long[0].begun.wait()
    assert [pool.add(lambda k=k: k).result() for k in range(20)] == list(range(20))
    assert [job.begun.is_set() for job in long] == [True, False, False]
    assert pool.waiting == 2
    for job in long:
        job.go.set()
    assert [f.result() for f in futures] == [0, 1, 2]


def test_the_only_thread_takes_long_jobs_too():
    pool = Workers(1)
    assert pool.submit(lambda: "long", None, lambda: None, True).result() == "long"
    pool.close()
    pool.join()


def test_a_long_job_is_not_starved_by_short_ones(pool):
    blocked = [Job(), Job()]
    for job in blocked:
        pool.add(job)
        job.begun.wait()
    order = []
    futures = [pool.add(lambda: order.append("short")), pool.add(lambda: order.append("long"), long=True)]
    futures += [pool.add(lambda: order.append("short")) for _ in range(5)]
    blocked[0].go.set()
    wait(futures)
    assert order.index("long") == 1
    blocked[1].go.set()


def test_others_take_the_place_of_those_that_wait(pool):
    job = Job()

    def away():
        with pool.blocking(True):
            return job()

    futures = [pool.add(away, long=True) for _ in range(6)]
    until(lambda: pool.waiting == 0)  # all six wait at once, in a pool of two
    assert pool.add(lambda: "short").result() == "short"
    job.go.set()
    wait(futures)
    until(lambda: len(pool._threads) <= 2)


def test_an_error_is_the_caller_s_and_the_thread_goes_on(pool):
    with pytest.raises(ZeroDivisionError):
        pool.add(lambda: 1 // 0).result()
    assert pool.add(lambda: 1).result() == 1


def test_closing_finishes_what_was_taken_or_fails_it():
    for timeout in (None, 0):
        pool, job = Workers(1), Job("first")
        futures = [pool.submit(job, "k", lambda: None)]
        futures += [pool.submit(lambda k=k: k, key, lambda: None) for k, key in enumerate(("k", "k", None))]
        job.begun.wait()
        if timeout is None:
            job.go.set()
        pool.close(timeout)
        job.go.set()
        pool.join()
        assert futures[0].result() == "first"
        for k, future in enumerate(futures[1:]):
            if timeout is None:
                assert future.result() == k
            else:
                assert isinstance(future.exception(), TierClosedError)
        with pytest.raises(TierClosedError):
            pool.submit(lambda: 1, None, lambda: None)


def test_long_work_gives_way_while_short_requests_are_at_work():
    at_work, checked = [2], threading.Event()

    def waiting():
        checked.set()
        return 0

    pace = Pace(lambda: at_work[0], waiting)
    with pace:
        thread = threading.Thread(target=pace.give_way, args=(3600,))
        thread.start()
        checked.wait()
        assert thread.is_alive()
        at_work[0] = 1  # the long one alone
        thread.join()
        pace.give_way(3600)
    pace.give_way(0)


def test_the_switch_interval_is_shared_and_put_back():
    import sys

    before = sys.getswitchinterval()
    switching.shorten(before / 4)
    switching.shorten(before / 2)
    assert sys.getswitchinterval() == pytest.approx(before / 4)
    switching.restore()
    assert sys.getswitchinterval() == pytest.approx(before / 4)
    switching.restore()
    assert sys.getswitchinterval() == pytest.approx(before)
