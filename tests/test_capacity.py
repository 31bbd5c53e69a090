"""Simulated queues against the theory that is known for them, and the benchmarks of the tier run for a moment."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from toktier.workload import Call, Material, generate, savings

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def queues():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import _queues

        yield _queues
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def mean_latency(queues, load, work, cores=1, count=60_000, seed=3):
    """Of jobs with a mean work of 1 and a utilisation of `load`."""
    made = queues.poisson(
        load * cores, count, lambda rng: queues.Job(0.0, work(rng), 0.0, "x", rng.randrange(99)), seed
    )
    return queues.simulate(made, cores)


def test_one_server_is_as_queueing_theory_says(queues):
    """M/M/1: 1 / (1 - load).  M/D/1: 1 + load / (2 (1 - load)).  And the share of time that it works is the load."""
    found = mean_latency(queues, 0.6, lambda rng: rng.expovariate(1.0))
    assert found.mean == pytest.approx(1 / 0.4, rel=0.05)
    assert found.utilisation == pytest.approx(0.6, rel=0.03)
    assert found.quantile(99) == pytest.approx(4.605 / 0.4, rel=0.1)  # exponential again: -ln(0.01) / (1 - load)
    found = mean_latency(queues, 0.6, lambda rng: 1.0)
    assert found.mean == pytest.approx(1 + 0.6 / 0.8, rel=0.03)


def test_several_servers_wait_as_erlang_says(queues):
    """M/M/2: the mean latency is 1 / (1 - load^2) of the work."""
    found = mean_latency(queues, 0.7, lambda rng: rng.expovariate(1.0), cores=2, count=40_000)
    assert found.mean == pytest.approx(1 / (1 - 0.49), rel=0.05)


def test_jobs_of_a_session_stay_on_its_core_and_whole_contexts_on_the_accelerator(queues):
    jobs = [queues.Job(0.0, 1.0, 0.25, "a", session=4), queues.Job(0.0, 1.0, 0.0, "b", session=6)]
    jobs.append(queues.Job(0.0, 1.0, 0.0, "c", session=4, accelerator=True))
    owned = queues.simulate(jobs, 2, owned=True)
    assert {k: v.tolist() for k, v in owned.latency.items()} == {"a": [1.25], "b": [2.0], "c": [3.0]}
    helped = queues.simulate(jobs, 2, owned=True, accelerators=1)
    assert {k: v.tolist() for k, v in helped.latency.items()} == {"a": [1.25], "b": [2.0], "c": [1.0]}
    assert helped.accelerator_utilisation == 0.5
    shared = queues.simulate(jobs, 2)
    assert sorted(float(v[0]) for v in shared.latency.values()) == [1.0, 1.25, 2.0]


def test_a_simulation_is_the_same_for_the_same_seed(queues):
    first, again, other = (
        mean_latency(queues, 0.5, lambda rng: rng.random(), count=500, seed=seed).mean for seed in (1, 1, 2)
    )
    assert first == again != other


def test_fewest_finds_the_edge(queues):
    for edge in (1, 2, 3, 7, 64, 65):
        assert queues.fewest(lambda n, edge=edge: n >= edge) == edge
    assert queues.fewest(lambda n: False, most=100) is None


def test_sessions_are_kept_for_as_long_as_said(queues):
    """One session of 10 characters, then 20 after 50 s, then 30 after 1,000 s."""
    calls = [
        Call("a", 0, 10, 10, event="start"),
        Call("a", 1, 10, 20, keep_chars=10, pause=50.0),
        Call("a", 2, 10, 30, keep_chars=20, pause=1000.0),
    ]
    found = queues.keep(calls, 100.0, bytes_a_char=2.0, starts=1e9)
    assert found.hit_rate == pytest.approx(1 / 3)
    assert found.scanned_share == pytest.approx((10 + 10 + 30) / 60)
    # byte seconds: 20 for 50 s, 40 for 100 s, nothing until the third call, 60 for 100 s; of three calls
    assert found.mean_bytes == pytest.approx((20 * 50 + 40 * 100 + 60 * 100) / 3, rel=0.01)
    assert queues.keep(calls, 2000.0, 2.0, starts=1e9).hit_rate == pytest.approx(2 / 3)


def test_kept_sessions_agree_with_the_traces_own_counts(queues):
    calls = list(generate(150, seed=2))
    direct = savings(calls)
    for ttl in (300.0, 3600.0):
        found = queues.keep(calls, ttl, 1.0, starts=1e9)
        assert found.hit_rate == pytest.approx(direct.hit_rate[ttl], abs=1e-9)
        assert found.scanned_share == pytest.approx(direct.scanned_chars[ttl] / direct.stateless_chars, rel=1e-9)


# -- load --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def load(queues):
    import _load

    return _load


def test_a_replay_sends_every_call_once_and_each_sessions_in_order(load):
    """Taken in parts, as the benchmark does it; contexts end as the traces say."""
    calls = [c for c in generate(5, seed=3) if c.call < 30]
    replay, texts = load.Replay(calls, sessions=3, seed=1), load.Texts()
    requests, seen, contexts = iter(replay), {}, {}
    while batch := load.take(requests, [0.0] * 7):
        for request in batch:
            seen.setdefault(request.session, []).append(request)
            operation, text = texts.message(request, whole=True)
            assert operation == "update"
            contexts[request.session] = len(text)
    assert len(replay) == len(calls) == sum(map(len, seen.values()))
    for name, requests in seen.items():
        mine = [c for c in calls if c.session == name]
        assert [len(r.append) for r in requests] == [c.append_chars for c in mine]
        assert [r.kind == "initialization" for r in requests] == [c.whole for c in mine]
        assert contexts[name] == mine[-1].context_chars
    assert not texts.of  # the last call of each session has it forgotten


def test_the_tier_is_sent_appends_and_whole_contexts_where_the_end_was_taken_back(load):
    texts = load.Texts()
    sent = [
        texts.message(load.Request("a", "continuation", part, keep), whole=False)
        for part, keep in (("abc", 0), ("de", None), ("X", 2), ("Y", 3))
    ]
    assert sent == [("append", "abc"), ("append", "de"), ("update", "abX"), ("append", "Y")]


def test_requests_are_due_as_often_as_said(load):
    for arrival in ("poisson", "burst"):
        times = load.due_times(50.0, 20_000, arrival, seed=1)
        assert times == sorted(times) == load.due_times(50.0, 20_000, arrival, seed=1)
        assert len(times) / times[-1] == pytest.approx(50.0, rel=0.05)
    assert len(set(load.due_times(50.0, 80, "burst", 1))) == 10


def test_a_mixture_has_the_share_of_whole_contexts_and_keeps_its_sessions(load):
    mixture = load.Mixture(8, share=0.1, most=100_000, seed=4)
    names = {request.session: len(request.append) for request in mixture.opening()}
    assert len(names) == 8
    whole = 0
    for request in load.take(mixture, [0.0] * 2000):
        if request.kind == "initialization":
            whole += 1
            names.pop(request.forget)
            names[request.session] = 0
        names[request.session] += len(request.append)
        assert names[request.session] <= 100_000
        assert len(names) == 8
    assert 0.1 <= whole / 2000 <= 0.4  # those that would have grown too large come on top


# -- the benchmarks themselves, for a moment ---------------------------------------------------------------------------


def bench(tmp_path, name, *args):
    """The status, the output and the JSON of a benchmark."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, args), "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((tmp_path / "out.json").read_text())


SMALL = ("--sessions", 2, "--most", 20_000, "--alone", 4, "--workers", 1)


def test_front_ends_are_compared_and_carried_to_a_fleet(tmp_path):
    out, found = bench(
        tmp_path, "tier.py", *SMALL, "--front-ends", "reference", "tier", "--verify", 0.5, "--rate", 40, "--seconds", 1
    )
    assert "nothing lost, nothing failed" in out
    alone, tier = found["alone"]
    assert (alone["front_end"], tier["front_end"]) == ("reference", "tier, 50 % verified")
    assert all(run["requests"] == 40 for run in found["runs"])
    stateless, served = found["runs"]
    assert stateless["served_bytes"] == stateless["scanned_bytes"]
    assert served["served_bytes"] > served["scanned_bytes"] > 0
    (tmp_path / "tier.json").write_text(json.dumps(found))
    out, carried = bench(
        tmp_path, "capacity.py", tmp_path / "tier.json", "--jobs", 300, "--sessions", 30, "--plots", tmp_path
    )
    assert [row["front_end"] for row in carried["check"]] == ["reference", "tier, 50 % verified"]
    assert carried["fleet"][0]["work"] > 0
    rates = [row["hit_rate"] for row in carried["kept"]]
    assert rates == sorted(rates)
    assert (tmp_path / "capacity_kept.png").stat().st_size > 1000


def test_a_replay_verifies_every_call(tmp_path):
    material = Material(1)
    calls = list(material.fill(iter([c for c in generate(3, seed=5) if c.call < 4])))
    for call in calls:  # a tenth of the sizes, so that the test is short
        call.append, call.append_chars = call.append[: call.append_chars // 10], call.append_chars // 10
        call.gen_chars = call.keep_chars = call.context_chars = 0
    lines = [json.dumps({"session": c.session, "call": c.call, "append": c.append}) for c in calls]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    out, found = bench(tmp_path, "tier.py", "--replay", tmp_path / "t.jsonl", "--verify", 1.0)
    assert "0 mismatches, 0 lost, 0 dropped" in out
    assert found["replay"]["stats"]["verifier"]["checked"] == len(calls) > 5


def test_long_contexts_and_a_soak(tmp_path):
    out, found = bench(
        tmp_path, "tier.py", "--contexts", 20_000, "--sessions", 2, "--seconds", 1, "--verify", 0.05, "--rate", 20
    )
    assert found["contexts"][0]["requests"] == 20
    assert "ABOVE 5 ms" in out or "within 5 ms" in out
    out, found = bench(tmp_path, "tier.py", *SMALL, "--soak", 0.03, "--rate", 30, "--plots", tmp_path)
    assert found["soak"]["lost"] == found["soak"]["failed"] == 0
    assert "verdict: memory is" in out
    assert (tmp_path / "tier_soak.png").exists()


def test_growth_is_told_from_noise(queues):
    import _soak

    rng = random.Random(1)
    flat = [{"at": 10.0 * k, "resident": 5e8 + rng.gauss(0, 5e6), "sessions": 1e8} for k in range(60)]
    assert _soak.verdict(flat)["flat"]
    assert abs(_soak.verdict(flat)["slope"]) < 1e8
    leaking = [{**s, "resident": s["resident"] + 2e6 * k} for k, s in enumerate(flat)]
    found = _soak.verdict(leaking)
    assert not found["flat"]
    assert found["slope"] == pytest.approx(2e6 * 360, rel=0.1)
    filling = [{**s, "resident": s["resident"] + 2e6 * k, "sessions": 1e8 + 2e6 * k} for k, s in enumerate(flat)]
    assert _soak.verdict(filling)["flat"]  # it is sessions that grew
