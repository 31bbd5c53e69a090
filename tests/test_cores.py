"""Work on all cores is done whatever becomes of the threads: at the interpreter's end, after a fork, without any."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from toktier import cores

AT_THE_END = """
import atexit, threading
import toktier
from toktier.cores import side_by_side

tok = toktier.load("o200k_base")
text = "Long enough for parts. " * 25_000
want = tok.encode(text, engine="reference")

def work():
    print(sum(side_by_side(abs, range(-5, 0))), (tok.encode(text, engine="host") == want).all())

def late():
    threading.main_thread().join()
    work()

{first}
atexit.register(work)
threading.Thread(target=late).start()
"""


@pytest.mark.parametrize("first", ["", "work()"], ids=["never used before", "used before"])
def test_work_is_done_after_the_main_thread_has_ended(first):
    run = subprocess.run([sys.executable, "-c", AT_THE_END.format(first=first)], capture_output=True, text=True)
    assert run.stderr == ""
    assert run.stdout.splitlines() == ["15 True"] * (2 + bool(first))


def test_work_is_done_where_no_thread_can_be_started(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cores, "_pools", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(cores.side_by_side(abs, iter(range(-5, 0)))) == [5, 4, 3, 2, 1]


FORKED = """
import os
from toktier import cores

assert list(cores.side_by_side(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
with cores._lock:  # as if another thread were about to take the threads
    child = os.fork()
    if not child:
        assert list(cores.side_by_side(abs, range(-5, 0))) == [5, 4, 3, 2, 1]
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_has_threads_of_its_own():
    run = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert (run.stdout.split(), run.stderr) == (["7"], "")


MAKING = """
import os, threading
import toktier

made, seen = threading.Event(), threading.Event()
tok = toktier.load("o200k_base")

def make():
    made.set()
    seen.wait()

thread = threading.Thread(target=lambda: (tok.core._made("slow", make), tok.core.reference._once("slow", make)))
thread.start()
made.wait()
child = os.fork()
if not child:
    assert tok.encode("hello world", engine="host").tolist() == [24912, 2375]
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
seen.set()
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_waits_for_no_thread_that_is_making_something():
    run = subprocess.run([sys.executable, "-c", MAKING], capture_output=True, text=True, timeout=60)
    assert (run.stdout.split(), run.stderr) == (["7"], "")
