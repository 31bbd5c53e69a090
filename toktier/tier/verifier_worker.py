"""The verifier's worker: a process of its own that asks the reference, and nothing else, what the ids should have been.

It reads messages from its standard input until that ends, which it does when the process that started it ends, however
that came about.  It runs at low priority in one thread.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from toktier.errors import InputError, SourceError
from toktier.tier.pipe import Pipe, PipeClosed

_CONFIRMED = 4  # mismatches of a tokenizer that a second, freshly made reference is asked about
_REDUCED = 8  # mismatches of a tokenizer that are made short
_BUDGET = 3_000_000  # characters that making one short may encode
_WINDOWS = (64, 512, 4096, 32768)  # characters around a difference, tried before the whole text


class _Job(NamedTuple):
    """One delivered result: whose, what text, how it was encoded, and the ids."""

    name: str
    text: str
    mode: Any
    add: bool
    got: np.ndarray


class _Reduced(NamedTuple):
    """A short failing input: what the reference says of it and what was delivered, or encoded again, for it."""

    text: str
    want: np.ndarray
    got: np.ndarray
    reproduced: bool


class Checker:
    """The references of several tokenizers, made when first asked.

    Args:
      sources: what each name is read from (`toktier.sources.Source`).
    """

    def __init__(self, sources: dict[str, Any]) -> None:
        self._sources = sources
        self._references: dict[str, Any] = {}
        self._confirmed: dict[str, int] = {}
        self._reductions: dict[str, int] = {}
        self._tokenizers: dict[str, Any] = {}

    def check(self, job: _Job) -> tuple[dict[str, Any], np.ndarray | None]:
        """The verdict on a delivered result (equal, differs, refused, failed), and the reference's ids."""
        unsteady = False
        try:
            want = self._encode(self._reference(job.name), job)
            if not np.array_equal(want, job.got) and self._confirmed.get(job.name, 0) < _CONFIRMED:
                # A reference may itself depend on what it encoded before; one that never encoded anything cannot.
                self._confirmed[job.name] = self._confirmed.get(job.name, 0) + 1
                fresh = self._fresh(job.name)
                again = self._encode(fresh, job)
                unsteady = not np.array_equal(want, again)
                if unsteady:
                    self._references[self._digest(job.name)], want = fresh, again
        except InputError as e:
            return {"verdict": "refused", "error": f"{type(e).__name__}: the reference refuses this text"}, None
        except Exception as e:
            said = f": {e}" if isinstance(e, SourceError) else ""  # the message of another may quote the text
            return {"verdict": "failed", "error": f"{type(e).__name__} of the reference{said}"}, None
        if np.array_equal(want, job.got):
            return {"verdict": "equal", "unsteady": unsteady}, want
        at = first_difference(want, job.got)
        verdict = {
            "verdict": "differs",
            "unsteady": unsteady,
            "position": at,
            "n_want": len(want),
            "n_got": len(job.got),
            "from": max(0, at - 2),
            "want": want[max(0, at - 2) : at + 6].tolist(),
            "got": job.got[max(0, at - 2) : at + 6].tolist(),
        }
        return verdict, want

    def reduce(self, job: _Job, want: np.ndarray) -> _Reduced | None:
        """A short text that shows the difference; None where enough of this tokenizer have been made short."""
        done = self._reductions.get(job.name, 0)
        if done >= _REDUCED:
            return None
        self._reductions[job.name] = done + 1
        try:
            return self._reproduced(job, want) or self._excerpt(job, want)
        except Exception:  # what could not be made short is kept whole
            return _Reduced(job.text, want, job.got, False)

    def _reproduced(self, job: _Job, want: np.ndarray) -> _Reduced | None:
        """Where encoding the text again is wrong again: the shortest text found for which it is."""
        from toktier.verify.minimise import minimise

        encode = self._host(job)
        if encode is None or np.array_equal(encode(job.text), want):
            return None
        reference = self._reference(job.name)

        def fails(text: str) -> bool:
            try:
                return not np.array_equal(encode(text), reference.encode(text, job.mode, job.add))
            except Exception:
                return False  # another fault

        at = self._place(job, want)
        text = job.text
        for size in _WINDOWS:
            part = job.text[max(0, at - size) : at + size]
            if len(part) < len(text) and fails(part):
                text = part
                break
        text = minimise(text, fails, min(400, _BUDGET // max(1, len(text))))
        return _Reduced(text, reference.encode(text, job.mode, job.add), encode(text), True)

    def _excerpt(self, job: _Job, want: np.ndarray) -> _Reduced:
        """The wrong part of a delivered result, and around it what makes the reference say the same of it alone."""
        reference = self._reference(job.name)
        ids, places = reference.encode_offsets(job.text, job.mode, job.add)
        got = job.got
        if np.array_equal(ids, want):
            front = first_difference(want, got)
            most = min(len(want), len(got)) - front
            behind = first_difference(want[len(want) - most :][::-1], got[len(got) - most :][::-1])
            asked, more = 0, 0
            while more < len(want) and asked < _BUDGET:
                a, b = max(0, front - more), min(len(want), len(want) - behind + more)
                if a < b:
                    text = job.text[int(places[a, 0]) : int(places[b - 1, 1])]
                    asked += len(text)
                    if np.array_equal(reference.encode(text, job.mode, False), want[a:b]):
                        return _Reduced(text, want[a:b], got[a : len(got) - (len(want) - b)], False)
                more = 2 * more + 1
        return _Reduced(job.text, want, got, False)

    def _place(self, job: _Job, want: np.ndarray) -> int:
        """The character at which the first wrong id stands."""
        ids, places = self._reference(job.name).encode_offsets(job.text, job.mode, job.add)
        at = first_difference(ids, job.got)
        return int(places[at, 0]) if at < len(places) else len(job.text)

    def _host(self, job: _Job) -> Callable[[str], np.ndarray] | None:
        """What encodes a text again with toktier's own engine, or None where it has none for this tokenizer."""
        from toktier.tokenizer import Tokenizer

        digest = self._digest(job.name)
        if digest not in self._tokenizers:
            self._tokenizers[digest] = Tokenizer(self._sources[job.name])
        tokenizer = self._tokenizers[digest]
        if tokenizer.core.reason:
            return None
        return lambda text: tokenizer.encode(text, special_tokens=job.mode, add_special_tokens=job.add, engine="host")

    def _digest(self, name: str) -> str:
        return self._sources[name].spec.digest

    def _reference(self, name: str) -> Any:
        digest = self._digest(name)
        if digest not in self._references:
            self._references[digest] = self._fresh(name)
        return self._references[digest]

    def _fresh(self, name: str) -> Any:
        """A reference that has encoded nothing yet."""
        source = self._sources[name]
        return type(source)(source.spec, source.recipe).reference

    @staticmethod
    def _encode(reference: Any, job: _Job) -> np.ndarray:
        return reference.encode(job.text, job.mode, job.add)


def first_difference(a: np.ndarray, b: np.ndarray) -> int:
    """The first index at which two id arrays differ; the length of the shorter one where it begins the other."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def main() -> None:
    """Answer messages until the input ends."""
    source, target = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # nothing that a library prints may come between the messages
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; this process ends with it
    parent = os.getppid()

    def watch() -> None:
        if os.getppid() != parent:  # a process forked from the parent may still hold the pipe open
            raise PipeClosed

    pipe = Pipe(source, target, watch)
    with contextlib.suppress(PipeClosed):
        head, bodies = pipe.receive()
        with contextlib.suppress(OSError):
            os.nice(head["nice"])
        checker = Checker(pickle.loads(bodies[0]))  # written by the process that started this one
        pipe.send({"verdict": "ready"})
        while True:
            _answer(pipe, checker)


def _answer(pipe: Pipe, checker: Checker) -> None:
    head, (text, ids) = pipe.receive()
    begin = time.process_time()
    mode = frozenset(head["mode"]) if isinstance(head["mode"], list) else head["mode"]
    got = np.frombuffer(ids, head["dtype"])
    job = _Job(head["name"], text.decode("utf-8", "surrogatepass"), mode, head["add"], got)
    verdict, want = checker.check(job)
    pipe.send({**verdict, "seconds": time.process_time() - begin})
    if verdict["verdict"] != "differs":
        return
    assert want is not None
    reduced = checker.reduce(job, want)
    if reduced is None:
        pipe.send({"verdict": "kept"})
        return
    bodies = [
        reduced.text.encode("utf-8", "surrogatepass"),
        *(_int64(a).tobytes() for a in (reduced.want, reduced.got)),
    ]
    pipe.send({"verdict": "reduced", "reproduced": reduced.reproduced}, [[b] for b in bodies])


def _int64(ids: np.ndarray) -> np.ndarray:
    return np.asarray(ids, np.int64)
