"""Kill tests: real processes, kill -9 at any moment, and then every document once, as if nothing had happened."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import corpus_source
import numpy as np
import pytest
from corpus_slow import poisoned, slow

from toktier import corpus
from toktier.errors import CorpusError

HERE = Path(__file__).resolve().parent
SHARD = 25_000

tok, source, undisturbed = corpus_source.fixtures(900, SHARD)


def start(source, out):
    args = [sys.executable, str(HERE / "corpus_slow.py"), str(source), str(out), str(SHARD)]
    return subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def workers(parent):
    """Process ids of the workers of a run."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [int(pid) for pid, ppid, *args in rows if int(ppid) == parent and "spawn_main" in "".join(args)]


def records(out):
    """How many shards are there."""
    return len(list(out.glob("shard-*.json"))) if out.exists() else 0


def wait_for(condition, process=None):
    """Until the condition holds (or the process ends); fails after a long while."""
    for _ in range(6000):
        if condition() or (process is not None and process.poll() is not None):
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened for a minute")


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    return False


def same(out, want, source, tok):
    """The output is that of the run that was never killed: each document once."""
    made = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert {k: v for k, v in made.items() if k != "run"} == {k: v for k, v in want.items() if k != "run"}
    found = corpus.open(out)
    found.verify()
    texts = [json.loads(line)["text"] for line in source.read_text(encoding="utf-8").splitlines()]
    assert [tok.decode(np.asarray(d)) for d in found] == texts
    assert not [p for p in out.iterdir() if p.name.endswith(".part") or p.suffix in (".tokens", ".lengths")]


def test_the_parent_is_killed_again_and_again(tok, source, undisturbed, tmp_path):
    rng, out, kills, seen = random.Random(1), tmp_path / "out", 0, 0
    while True:
        process = start(source, out)
        goal = records(out) + rng.randrange(5, 12)
        wait_for(lambda goal=goal: records(out) >= goal, process)
        time.sleep(rng.random() * 0.05)
        orphans = workers(process.pid)
        process.kill()
        _, err = process.communicate()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, err
            break
        kills += 1
        seen += len(orphans)
        wait_for(lambda pids=orphans: not any(map(alive, pids)))  # workers do not outlast their parent
    assert kills >= 2
    assert seen >= 2
    same(out, undisturbed, source, tok)


def test_workers_that_are_killed_are_replaced(tok, source, undisturbed, tmp_path):
    rng, out, killed = random.Random(3), tmp_path / "out", set()
    settings = corpus.Settings(shard_bytes=SHARD, processes=2)
    run = threading.Thread(target=corpus.run, args=(tok, [source], out, settings, None, slow))
    run.start()
    while run.is_alive() and len(killed) < 2:  # a third might be the third of one unit, which ends a run
        goal = records(out) + rng.randrange(1, 6)
        wait_for(lambda goal=goal: records(out) >= goal or not run.is_alive())
        if found := [p.pid for p in multiprocessing.active_children() if p.pid not in killed]:
            victim = rng.choice(found)
            killed.add(victim)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
    run.join()
    assert len(killed) == 2
    same(out, undisturbed, source, tok)


def test_a_unit_that_kills_its_workers_is_named(tok, source, undisturbed, tmp_path):
    out, settings = tmp_path / "out", corpus.Settings(shard_bytes=200_000, processes=2)
    with pytest.raises(CorpusError, match=r"unit \d \(.*a.jsonl \[\d+, \d+\)\): its worker died 3 times.*code -9"):
        corpus.run(tok, [source], out, settings, encode=poisoned)
    assert not list(out.glob("*.part"))
    made = corpus.run(tok, [source], out, dataclasses.replace(settings, processes=1))
    assert made["run"]["shards_found"] >= 1
    assert made["documents"] == undisturbed["documents"]
    assert made["tokens"] == undisturbed["tokens"]


def test_ctrl_c_ends_all_and_leaves_what_is_done(source, tmp_path):
    out = tmp_path / "out"
    for k in range(12):
        (tmp_path / f"{k}.jsonl").write_bytes(source.read_bytes())
    args = ["corpus", f"{tmp_path}/*.jsonl", "-o", str(out), "--shard-bytes", str(SHARD), "--processes", "2"]
    process = subprocess.Popen([sys.executable, "-m", "toktier.cli", *args], stderr=subprocess.PIPE)
    wait_for(lambda: records(out) >= 3, process)
    pids = workers(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err.decode().strip()) == (130, "toktier: interrupted")
    assert not any(map(alive, pids))
    assert records(out) >= 3
    assert not list(out.glob("*.part"))


def test_killed_at_each_write_to_disk(tmp_path):
    """A kill before, in and after writes, syncs, renames and removals of a run of two shards.

    Every third of them here; `python corpus_steps.py INPUT FOLDER 1 1` takes each.
    """
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"text": f"{k} " + "some text " * k}) + "\n" for k in range(22)))
    args = [sys.executable, str(HERE / "corpus_steps.py"), str(source), str(tmp_path), "1", "3"]
    done = subprocess.run(args, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60
