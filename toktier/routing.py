"""Which engine `engine="auto"` takes.  All constants of that choice are here.

The ids are the same whichever engine runs; what differs is the time.  `benchmarks/encode.py` prints the times from
which the sizes come: below CROSSOVER the host engine answers sooner than the device program with launch and transfer.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

ENGINES = ("auto", "device", "host", "reference")

NEVER = 1 << 62
# Bytes of text from which the device program is the faster one, by JAX backend.  On a CPU the host engine is: at every
# size that was measured, on two cores (docs/performance.md).
CROSSOVER = {"cpu": NEVER, "gpu": 1 << 15, "tpu": 1 << 15}
# Below the smallest of them nobody asks for the backend, so small texts never import JAX.
SMALL = min(CROSSOVER.values())
# Characters up to which tiktoken itself, where it is the reference, is the quickest for ids alone: it has the same
# loop as the host engine and no steps around it.  It takes 0.4 s and 45 MB to make, which pay after so many.
TIKTOKEN = 1 << 14
TIKTOKEN_PAYS = 1 << 17
# The first use of the device imports JAX and compiles or loads programs, which takes seconds.  Before that was asked
# for (`warmup()`, engine="device"), only a text that keeps the host engine busy for as long is worth it.
COLD = 1 << 24

_state = {"forked": False}


def _after_fork() -> None:
    # The threads of a running XLA client do not survive a fork, and a child that calls it hangs.
    _state["forked"] = _state["forked"] or "jax" in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def in_worker() -> bool:
    """Whether this is a worker (of multiprocessing, or forked after JAX was loaded): those leave the device alone."""
    return _state["forked"] or multiprocessing.parent_process() is not None


def backend() -> str:
    """The backend of JAX, or "" where there is none to use: no JAX, no device, or a worker process."""
    if in_worker():
        return ""
    try:
        import jax

        return jax.default_backend()
    except (ImportError, RuntimeError, AssertionError):
        return ""


def choose(size: int, started: bool) -> str:
    """The engine for `size` bytes of text, "host" or "device"; `started`: this tokenizer's device engine is in use."""
    if size < (SMALL if started else COLD):
        return "host"
    name = backend()
    return "device" if name and size >= CROSSOVER.get(name, SMALL) else "host"
