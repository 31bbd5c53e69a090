"""The shadow verifier: every sampled fault is found, nothing else is, nothing is lost, and nothing waits for it."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from multiprocessing import spawn
from pathlib import Path

import families
import numpy as np
import pytest

import toktier
from toktier.core import Core
from toktier.errors import InputError, InputTypeError
from toktier.host import HostEngine
from toktier.testing import faults
from toktier.testing.delivered import KINDS, DeliveredFaults
from toktier.tier import Thresholds, Tier, Verifier
from toktier.tier.handover import Sampler
from toktier.tier.pipe import Pipe, PipeClosed, PipeTimeout
from toktier.tier.verifier_worker import Checker, _Job, first_difference
from toktier.verify import Settings, campaign, documents

TEXTS = families.texts()
ENGLISH = TEXTS["english"]


@pytest.fixture(scope="module")
def tokenizers():
    return {
        "o200k": toktier.load("o200k_base"),
        "qwen3": toktier.load(families.tokenizer("qwen3")),
        "llama3": toktier.load(families.tokenizer("llama3")),
    }


@pytest.fixture(scope="module")
def alarms():
    return []


@pytest.fixture(scope="module")
def shared(tokenizers, alarms, tmp_path_factory):
    """A verifier of everything, whose worker is started once for this module."""
    with Verifier(1.0, queue=1000, on_alarm=alarms.append, directory=tmp_path_factory.mktemp("kept")) as verifier:
        verifier.start(tokenizers)
        yield verifier


def settled(verifier):
    """The counts once nothing is pending: no sampled result may be lost or counted twice."""
    assert verifier.wait(300)
    counts = verifier.stats()
    assert counts["sampled"] == counts["checked"] + counts["dropped"] + counts["errors"] + counts["pending"]
    assert counts["dropped"] == counts["dropped_queue"] + counts["dropped_bytes"] + counts["dropped_closed"]
    assert counts["pending"] == counts["pending_bytes"] == 0
    return counts


def started(tokenizers, **options):
    verifier = Verifier(1.0, **options)
    verifier.start({"o200k": tokenizers["o200k"]})
    return verifier


def paused(verifier, tokenizer):
    """Stop the worker, once it has answered, so that what is offered stays pending."""
    assert verifier.offer("o200k", "a", tokenizer.encode("a"))
    settled(verifier)
    os.kill(verifier.worker_pid, signal.SIGSTOP)
    return verifier.worker_pid


def gone(pid, seconds=30):
    """Has the process ended within so many seconds?  One that nobody waits for counts as ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if file.read().rsplit(b")", 1)[1].split()[0] == b"Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


# -- verdicts ----------------------------------------------------------------------------------------------------------


def test_right_results_of_all_kinds_raise_no_alarm(shared, alarms, tokenizers):
    alarms.clear()
    before, offered = settled(shared)["checked"], 0
    for name, tok in tokenizers.items():
        for text in [*TEXTS.values(), "", "<|endoftext|> a", "é" * 3000]:
            for mode in ("parse", "text"):
                ids = tok.encode(text, special_tokens=mode, engine="host")
                assert shared.offer(name, text, ids, mode)
                offered += 1
        ids = tok.encode(ENGLISH, add_special_tokens=True, engine="host")
        assert shared.offer(name, lambda: [ENGLISH[:100], "", ENGLISH[100:]], ids.tolist(), None, True)
        parts = [ENGLISH, "é" * 70_000, *TEXTS["code"]] * 3
        ids = tok.encode("".join(parts), special_tokens="text", engine="host")
        assert shared.offer(name, tuple(parts), ids, "text")
        offered += 2
    some = {"<|endoftext|>"}
    ids = tokenizers["o200k"].encode("a<|endoftext|><|endofprompt|>", special_tokens=some)
    assert shared.offer("o200k", "a<|endoftext|><|endofprompt|>", ids, some)
    counts = settled(shared)
    assert counts["checked"] - before == offered + 1
    assert (counts["errors"], counts["dropped"], alarms) == (0, 0, [])


def test_a_text_may_hold_half_a_surrogate_pair(shared, alarms, tokenizers):
    """tiktoken replaces it; `tokenizers` refuses the text, so ids that were delivered for it are wrong."""
    alarms.clear()
    text = "a\ud800b"
    assert shared.offer("o200k", text, tokenizers["o200k"].encode(text))
    assert shared.offer("qwen3", text, [1, 2, 3], request="half")
    settled(shared)
    assert [(a.tokenizer, a.request, a.n_want) for a in alarms] == [("qwen3", "half", 0)]
    assert "refuses" in alarms[0].error


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_fault_is_caught_at_its_place(shared, alarms, tokenizers, kind):
    alarms.clear()
    rng, expected = random.Random(kind), {}
    for name, tok in tokenizers.items():
        plant = DeliveredFaults(tok)
        for k, text in enumerate(list(TEXTS.values())[:6]):
            ids = tok.encode(text, special_tokens="text", engine="host")
            planted = plant.plant(kind, ids, rng)
            assert planted is not None
            assert shared.offer(name, text, planted.ids, "text", request=f"{name} {k}")
            expected[f"{name} {k}"] = planted.position
            assert shared.offer(name, text, ids, "text", request="right")
    counts = settled(shared)
    assert {a.request: a.position for a in alarms} == expected
    assert len(alarms) == len(expected)
    assert counts["errors"] == 0


def test_planted_ids_are_wrong_and_a_resplit_is_silent(tokenizers):
    rng, same_length = random.Random(5), 0
    for tok in tokenizers.values():
        plant = DeliveredFaults(tok)
        for text in [*TEXTS.values(), "ab", "a"]:
            ids = tok.encode(text, special_tokens="text", engine="host")
            for kind in KINDS:
                made = plant.plant(kind, ids, rng)
                if made is None:
                    assert text in ("ab", "a")  # one token has no neighbour, and none that can be cut in two
                    continue
                assert not np.array_equal(made.ids, ids)
                assert first_difference(made.ids, ids) == made.position
                if kind == "resplit":
                    assert tok.decode_bytes(made.ids) == tok.decode_bytes(ids)
                    same_length += len(made.ids) == len(ids)
    assert same_length > 30
    with pytest.raises(InputError, match="kind='swop'"):
        plant.plant("swop", ids, rng)
    assert plant.plant("deletion", ids[:0], rng) is None


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_the_smallest_failing_input_is_kept(tokenizers, tmp_path):
    tok = tokenizers["o200k"]

    def wrong(text, at):
        ids = tok.encode(text, engine="host")
        ids[at] += 1
        return ids

    with started(tokenizers, directory=tmp_path, quarantine=True, on_alarm=lambda found: 1 / 0) as verifier:
        kept = []
        for text, at in ((ENGLISH, 40), (" antidisestablishmentarianism", 0), (" is", 0), (ENGLISH, 40)):
            verifier.offer("o200k", text, wrong(text, at))
            settled(verifier)
            kept.append(verifier.smallest("o200k"))
        assert [k.reproduced for k in kept] == [False] * 4
        sizes = [k.n_chars for k in kept]
        assert sizes[0] < 20  # the text is cut around the wrong token
        assert sizes == sorted(sizes, reverse=True)
        last = kept[-1]
        assert tuple(tok.encode(last.text).tolist()) == last.want != last.got
        (file,) = tmp_path.iterdir()
        stored = json.loads(file.read_text())
        assert (stored["text"], stored["digest"]) == (last.text, last.digest)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert ENGLISH[:40] not in repr(last)
        counts = verifier.stats()
        assert (counts["mismatched"], counts["alarms"], counts["alarm_errors"]) == (4, 4, 4)
        assert (counts["quarantined"], verifier.quarantined) == (["o200k"], {"o200k"})
        assert counts["by_tokenizer"] == {"o200k": {"checked": 4, "mismatched": 4}}
        verifier.release("o200k")
        assert verifier.quarantined == frozenset()


def test_with_hashes_alone_no_text_leaves_the_verifier(tokenizers, tmp_path):
    found, secret = [], "attorney client privilege"
    ids = tokenizers["o200k"].encode(secret)
    with started(tokenizers, directory=tmp_path, keep="hash", key=b"k", on_alarm=found.append) as verifier:
        verifier.offer("o200k", secret, ids[::-1])
        counts = settled(verifier)
        (file,) = tmp_path.iterdir()
        seen = file.read_text() + repr(found) + repr(verifier.smallest("o200k")) + json.dumps(counts)
    assert (found[0].text, found[0].want, found[0].got) == (None, (), ())
    stored = json.loads(file.read_text())
    assert (stored["text"], stored["want"], stored["got"]) == (None, None, None)
    assert len(found[0].digest) == 64
    assert found[0].digest == stored["request_digest"]
    assert stored["n_chars"] == len(secret)
    for word in secret.split():
        assert word not in seen


def test_a_directory_that_cannot_be_written_is_counted(tokenizers, tmp_path):
    (tmp_path / "file").write_text("")
    with started(tokenizers, directory=tmp_path / "file" / "below") as verifier:
        verifier.offer("o200k", "a b", [1, 2])
        counts = settled(verifier)
    assert (counts["mismatched"], counts["keep_errors"]) == (1, 1)
    assert "cannot be kept" in counts["last_error"]


def job(tok, text, got, mode="text", add=False):
    return _Job("t", text, mode, add, np.asarray(got))


def test_a_fault_of_the_engine_is_reproduced_and_made_short(tokenizers):
    tok = tokenizers["llama3"]
    texts = [ENGLISH, TEXTS["code"]]
    campaign._start(tok, Settings(plants=0, processes=1), "/nonexistent")
    sample = campaign._sample(0, [documents.Document(t, ((0, 0),)) for t in texts])
    fault = next(f for f in faults.choose(tok.core.tables, [sample], 10, 3) if f.kind == "id")
    broken = toktier.load(families.tokenizer("llama3"))
    broken._core = Core(tok._source)
    broken._core._parts["host"] = HostEngine(faults.plant(fault, tok.core.tables))
    checker = Checker({"t": tok._source})
    checker._tokenizers[tok.spec.digest] = broken
    text = max(texts, key=lambda t: not np.array_equal(broken.encode(t, engine="host"), tok.encode(t)))
    got = broken.encode(text, special_tokens="text", engine="host")
    verdict, want = checker.check(job(tok, text, got))
    assert verdict["verdict"] == "differs"
    reduced = checker.reduce(job(tok, text, got), want)
    assert reduced.reproduced
    assert len(reduced.text) < 20
    assert np.array_equal(reduced.want, tok.encode(reduced.text, special_tokens="text"))
    assert not np.array_equal(reduced.want, reduced.got)


def test_a_reference_that_depends_on_its_past_raises_no_alarm(tokenizers):
    """Here one that has become another tokenizer's: what a freshly made one says counts."""
    tok = tokenizers["llama3"]
    checker = Checker({"t": tok._source})
    checker._references[tok.spec.digest] = tokenizers["o200k"]._source.reference
    ids = tok.encode(ENGLISH, special_tokens="text")
    first, second = (checker.check(job(tok, ENGLISH, ids))[0] for _ in range(2))
    assert (first["verdict"], first["unsteady"], second["unsteady"]) == ("equal", True, False)


def test_a_tokenizer_file_that_changed_is_an_error_not_a_mismatch(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(families.tokenizer_json("gpt2"), encoding="utf-8")
    tok = toktier.load(file)
    file.write_text("{}")
    verdict, want = Checker({"t": tok._source}).check(job(tok, "a", [1]))
    assert (verdict["verdict"], want) == ("failed", None)
    assert "has changed" in verdict["error"]


# -- bounds and faults -------------------------------------------------------------------------------------------------


def test_a_full_queue_drops_and_a_worker_that_goes_on_checks_the_rest(tokenizers):
    tok = tokenizers["o200k"]
    small, big = tok.encode("a b"), "c d " * 20_000
    with started(tokenizers, queue=5, max_bytes=100_000) as verifier:
        pid = paused(verifier, tok)
        assert not verifier.offer("o200k", big, tok.encode(big))
        taken = [verifier.offer("o200k", "a b", small) for _ in range(9)]
        assert taken == [True] * 5 + [False] * 4
        asked = []
        assert not verifier.offer("o200k", lambda: asked.append(1), small)
        assert asked == []  # no text is put together for a result that has no place
        assert not verifier.wait(0.01)
        counts = verifier.stats()
        assert (counts["dropped_queue"], counts["dropped_bytes"], counts["pending"]) == (5, 1, 5)
        assert 0 < counts["pending_bytes"] < 100_000
        os.kill(pid, signal.SIGCONT)
        counts = settled(verifier)
    assert (counts["checked"], counts["mismatched"], counts["restarts"]) == (6, 0, 0)


def test_a_killed_worker_is_replaced_and_its_text_checked(tokenizers):
    tok = tokenizers["o200k"]
    with started(tokenizers) as verifier:
        pid = paused(verifier, tok)
        for _ in range(3):
            assert verifier.offer("o200k", ENGLISH, tok.encode(ENGLISH))
        os.kill(pid, signal.SIGKILL)
        counts = settled(verifier)
        assert verifier.worker_pid not in (None, pid)
    assert (counts["checked"], counts["errors"], counts["mismatched"], counts["restarts"]) == (4, 0, 0, 1)
    assert gone(pid)


def test_a_worker_that_hangs_is_replaced_and_its_text_given_up(tokenizers):
    tok = tokenizers["o200k"]
    with started(tokenizers, timeout=10.0, nice=0) as verifier:
        pid = paused(verifier, tok)
        for _ in range(2):
            assert verifier.offer("o200k", "a b", tok.encode("a b"))
        counts = settled(verifier)
    assert (counts["checked"], counts["errors"], counts["restarts"]) == (2, 1, 1)
    assert "hangs" in counts["last_error"]
    assert gone(pid)


def test_where_no_worker_can_be_started_nobody_waits_for_ever(tokenizers):
    executable = spawn.get_executable()
    spawn.set_executable("/bin/false")
    try:
        with started(tokenizers) as verifier:
            for _ in range(3):
                verifier.offer("o200k", "a b", [1])
            counts = settled(verifier)
            assert (counts["errors"], counts["checked"], counts["mismatched"]) == (3, 0, 0)
            spawn.set_executable(executable)
            assert verifier.offer("o200k", "a b", tokenizers["o200k"].encode("a b"))
            assert settled(verifier)["checked"] + verifier.stats()["errors"] == 4
    finally:
        spawn.set_executable(executable)


def test_what_makes_no_sense_is_an_error_and_nothing_else(shared, alarms):
    alarms.clear()
    before = settled(shared)
    shared.offer("nobody", "a", [1])
    shared.offer("o200k", "a", ["one"])
    shared.offer("o200k", "a", [[1], [2]])
    shared.offer("o200k", "a", None)
    shared.offer("o200k", ["a", None], [1])
    shared.offer("o200k", 5, [1])
    shared.offer("o200k", lambda: 1 / 0, [1])
    shared.offer("o200k", "a", [64], special_tokens=5)
    shared.offer("o200k", "a", [64], special_tokens="some")
    counts = settled(shared)
    assert counts["restarts"] == before["restarts"]
    assert (counts["errors"] - before["errors"], alarms) == (9, [])


def test_closing_counts_what_was_pending_and_ends_the_worker(tokenizers):
    tok = tokenizers["o200k"]
    verifier = started(tokenizers)
    pid = paused(verifier, tok)
    for _ in range(4):
        verifier.offer("o200k", "a b", tok.encode("a b"))
    verifier.close()
    verifier.close()
    assert gone(pid)
    assert not verifier.offer("o200k", "a b", tok.encode("a b"))
    counts = settled(verifier)
    assert (counts["checked"], counts["dropped_closed"], counts["restarts"]) == (1, 5, 0)
    with pytest.raises(InputError, match="started before"):
        verifier.start({})
    assert verifier.worker_pid is None


def test_the_worker_ends_with_its_parent():
    code = """
import time, toktier
from toktier.tier import Thresholds, Tier, Verifier
tok = toktier.load("cl100k_base")
verifier = Verifier(1.0)
verifier.start({"t": tok})
verifier.offer("t", "a b", tok.encode("a b"))
assert verifier.wait(60)
print(verifier.worker_pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert not gone(pid, 0)
        parent.kill()
    assert gone(pid)


def test_a_program_that_forgets_to_close_still_ends():
    code = """
import toktier
from toktier.tier import Thresholds, Tier, Verifier
tok = toktier.load("cl100k_base")
verifier = Verifier(1.0)
verifier.start({"t": tok})
verifier.offer("t", "a b", tok.encode("a b"))
verifier.wait()
print(verifier.worker_pid, verifier.stats()["checked"])
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    pid, checked = run.stdout.split()
    assert (run.returncode, run.stderr, checked) == (0, "", "1")
    assert gone(int(pid))


def test_many_threads_lose_no_count(tokenizers):
    tok = tokenizers["o200k"]
    ids = tok.encode("a b")
    with Verifier(0.02, seed=3, queue=1000) as verifier:
        verifier.start({"o200k": tok})
        work = [
            threading.Thread(target=lambda: [verifier.offer("o200k", "a b", ids) for _ in range(2000)])
            for _ in range(4)
        ]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
        counts = settled(verifier)
    sampler = Sampler(0.02, 3)
    assert (counts["offered"], counts["sampled"]) == (8000, sum(sampler() for _ in range(8000)))
    assert (counts["checked"], counts["mismatched"]) == (counts["sampled"], 0)


# -- parts -------------------------------------------------------------------------------------------------------------


def test_sampling_is_seeded():
    drawn = [[sampler() for _ in range(20_000)] for sampler in (Sampler(0.05, 7), Sampler(0.05, 7), Sampler(0.05, 8))]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 900 < sum(drawn[0]) < 1100
    assert not any(map(lambda s: s(), [Sampler(0.0, None)] * 1000))
    assert all(map(lambda s: s(), [Sampler(1.0, None)] * 1000))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"rate": 1.5}, InputError, "rate=1.5"),
        ({"rate": "all"}, InputTypeError, "rate must be a number"),
        ({"keep": "some"}, InputError, "keep='some'"),
        ({"queue": 0}, InputError, "queue=0"),
        ({"max_bytes": 0}, InputError, "max_bytes=0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, error, said):
    with pytest.raises(error, match=said):
        Verifier(**options)


def test_messages_of_any_size_pass_a_pipe():
    (a_in, b_out), (b_in, a_out) = os.pipe(), os.pipe()
    here, there = Pipe(a_in, a_out), Pipe(b_in, b_out)
    bodies = [b"", b"x", random.Random(1).randbytes(3_000_000)]
    got = []
    reader = threading.Thread(target=lambda: got.append(there.receive(60)))
    reader.start()
    here.send({"head": 1}, [[b[:1000], b[1000:]] for b in bodies], 60)
    reader.join()
    assert got == [({"head": 1}, bodies)]
    with pytest.raises(PipeTimeout):
        here.receive(0.01)
    with pytest.raises(PipeTimeout):
        here.send({}, [[bodies[2]]], 0.01)
    there.close()
    with pytest.raises(PipeClosed):
        here.receive(10)
    with pytest.raises(PipeClosed):
        here.send({}, [[b"x"]], 10)
    here.close()
    here.close()


def test_neither_jax_nor_the_references_are_loaded_for_it():
    code = "import sys, toktier.tier.verifier, toktier.tier.verifier_worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jax", "tokenizers", "tiktoken"} & set(loaded)


def test_a_tier_offers_every_answer_and_heeds_the_quarantine():
    never = Thresholds(device=1 << 40, join=1 << 40)
    verifier = Verifier(1.0, quarantine=True)
    with Tier({"cl100k": "cl100k_base"}, thresholds=never, verifier=verifier) as tier:
        first = tier.encode(ENGLISH, session="a")
        paths = [
            first.path,
            tier.append("a", " and more").path,
            tier.edit("a", 3, 9, "é").path,
            tier.encode(TEXTS["code"]).path,
        ]
        assert "reference" not in paths
        counts = settled(verifier)
        assert (counts["offered"], counts["checked"], counts["mismatched"]) == (4, 4, 0)
        verifier.offer("cl100k", ENGLISH, first.ids[:-1])
        assert settled(verifier)["quarantined"] == ["cl100k"]
        for answer in (tier.encode(ENGLISH), tier.encode(ENGLISH, session="b")):
            assert answer.path == "reference"
            assert np.array_equal(answer.ids, first.ids)
        verifier.release("cl100k")
        assert tier.encode(ENGLISH).path == "host"
        assert tier.stats()["verifier"]["mismatched"] == 1
    assert verifier.worker_pid is None


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    import verifier

    return verifier


def test_the_campaign_misses_nothing_and_raises_no_false_alarm(benchmark, tmp_path, capsys):
    asked = ["--requests", "80", "--faults", "20", "--rates", "1.0", "0.2", "--runs", "400"]
    tokenizer = ["--tokenizer", "cl100k_base", "--texts", "english", "code", "thai"]
    assert benchmark.main([*asked, *tokenizer, "--only", "delay", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("0 missed of those sampled, 0 false alarms, 0 dropped, 0 errors") == 2
    stored = json.loads((tmp_path / "verifier.json").read_text())
    full, part = stored["campaign"]
    assert (full["requests"], len(full["planted"]), len(full["caught"]), len(full["sampled"])) == (80, 20, 20, 80)
    assert set(part["caught"]) == set(part["sampled"]) & set(full["caught"])
    assert set(full["planted"].values()) == set(KINDS)
    (law,) = stored["delay"]
    assert law["distance"] < law["bound"]
    assert (tmp_path / "verifier.png").stat().st_size > 10_000


def test_quantiles_of_the_law(benchmark):
    assert [benchmark.law_quantile(q, 0.05) for q in (0.05, 0.5, 0.9)] == [1, 14, 45]
    rng = np.random.default_rng(1)
    assert benchmark.law_distance(rng.geometric(0.05, 100_000), 0.05) < 0.005
    assert benchmark.law_distance(rng.geometric(0.06, 100_000), 0.05) > 0.05
