"""Shadow verification: a sample of delivered results is encoded again by the reference, off the request path."""

from __future__ import annotations

import atexit
import collections
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from toktier.errors import InputError, InputTypeError
from toktier.tier.handover import HandOverError, Sample, Sampler, Text, message
from toktier.tier.mismatch import KEEP, FailingInput, Keeper, Mismatch
from toktier.tier.pipe import PipeClosed, PipeTimeout
from toktier.tier.verifier_counts import VerifierCounts
from toktier.tier.verifier_process import WorkerProcess

if TYPE_CHECKING:
    import os

    from toktier.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_PAUSES = (0.1, 30.0)  # seconds before a worker that ended is replaced, doubled each time without a verdict between
_JOIN = 10.0  # seconds that `close` waits for a callback to return
_ATTEMPTS = 2  # workers that may end over one text before it is given up
_CHARS_A_SECOND = 20_000  # slowest pace of the reference on a long text before its worker is taken for hanging


class Verifier:
    """Checks a sample of delivered results against the reference in a process of its own; safe from any thread.

    Every sampled result ends in exactly one of the counts `checked`, `dropped` or `errors`, or is `pending`.  The
    worker process runs at low priority, one text at a time; what it cannot keep up with is dropped and counted.

    Args:
      rate: share of results that is checked, 0 to 1.
      queue: results that wait or are being checked, at most.  max_bytes: memory that these hold, at most.
      seed: of the sampling; the same results are chosen each time when they come in the same order.
      keep: "text" keeps the smallest failing input of each tokenizer as it is, "hash" only its lengths and a keyed
        hash (`key`, random if None); what `on_alarm` is given goes by it too.
      on_alarm: called with a `Mismatch` for each, from the verifier's thread; an exception in it is counted and logged.
      quarantine: put a tokenizer's name into `quarantined` at its first mismatch.
      directory: where the smallest failing inputs are written, one JSON file a tokenizer.
      nice: what is added to the worker's niceness.  timeout: seconds a check may take, and one more for every 20,000
        characters, before its worker is taken for hanging and replaced.

    Raises:
      InputError, InputTypeError: an argument that makes no sense.

    >>> import toktier
    >>> tok = toktier.load("o200k_base")
    >>> with Verifier(rate=1.0) as verifier:
    ...     verifier.start({"o200k": tok})
    ...     verifier.offer("o200k", "hello world", tok.encode("hello world"))
    ...     verifier.wait()
    ...     verifier.stats()["mismatched"]
    True
    True
    0
    """

    def __init__(
        self,
        rate: float = 0.05,
        *,
        queue: int = 64,
        seed: int | None = None,
        keep: str = "text",
        on_alarm: Callable[[Mismatch], None] | None = None,
        quarantine: bool = False,
        directory: str | os.PathLike[str] | None = None,
        max_bytes: int = 64 << 20,
        key: bytes | None = None,
        nice: int = 10,
        timeout: float = 60.0,
    ) -> None:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            raise InputTypeError(f"rate must be a number from 0 to 1, not {type(rate).__name__}")
        if not 0 <= rate <= 1:
            raise InputError(f"rate={rate!r} is no share of results: use a number from 0 (none) to 1 (all)")
        if keep not in KEEP:
            raise InputError(f"keep={keep!r} is not known: use one of {', '.join(KEEP)}")
        for name, value in (("queue", queue), ("max_bytes", max_bytes)):
            if value < 1:
                raise InputError(f"{name}={value!r} leaves no room for a result: use 1 or more")
        self._sampler = Sampler(rate, seed)
        self._most, self._max_bytes = queue, max_bytes
        self._on_alarm, self._quarantine = on_alarm, quarantine
        self._keeper = Keeper(keep, directory, key)
        self._nice, self._timeout = nice, timeout
        self._mutex = threading.Lock()
        self._lock = threading.Condition(self._mutex)
        self._queue: collections.deque[Sample] = collections.deque()
        self._pending = self._bytes = 0
        self._counts = VerifierCounts()
        self._busy = False  # with an input that is being made short
        self._quarantined: frozenset[str] = frozenset()
        self._tokenizers: dict[str, Tokenizer] = {}
        self._worker: WorkerProcess | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self, tokenizers: Mapping[str, Tokenizer]) -> None:
        """Start the worker process for these tokenizers, without waiting for it.

        Raises:
          InputError: it was started, or closed, before.
        """
        with self._lock:
            if self._closed or self._thread is not None:
                raise InputError("the verifier was started before: make a new one for other tokenizers")
            self._tokenizers = dict(tokenizers)
            self._thread = threading.Thread(target=self._run, name="toktier-verifier", daemon=True)
            _alive.add(self)
            self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is pending; False if that takes longer than so many seconds."""
        with self._lock:
            return self._lock.wait_for(self._idle, timeout) and not self._pending

    def _idle(self) -> bool:
        return self._closed or not (self._pending or self._busy)

    def close(self) -> None:
        """End the worker; what is pending counts as dropped.  `wait` first to have it checked."""
        with self._lock:
            self._closed = True
            while self._queue:
                self._settle(self._queue.popleft(), "dropped", "dropped_closed")
            worker, thread = self._worker, self._thread
            self._lock.notify_all()
        if worker is not None:
            worker.kill()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN)
        _alive.discard(self)

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the request path ------------------------------------------------------------------------------------------

    def offer(
        self,
        tokenizer: str,
        text: Text | Callable[[], Text],
        ids: Any,
        special_tokens: Any = None,
        add_special_tokens: bool = False,
        request: Any = None,
    ) -> bool:
        """Tell of a delivered result; never blocks and never raises for what it is told.

        Only references are kept: nothing is encoded, copied or written here, but ids in a writeable array, which are
        copied.

        Args:
          tokenizer: its name in `start`.
          text: the whole text that the ids stand for, or its parts in order, or what gives either: that is called here,
            only for a result that is sampled and has room.
          ids: integers, as delivered.
          special_tokens, add_special_tokens: as they were encoded.
          request: anything to know it by in an alarm.

        Returns:
          whether it will be checked.
        """
        with self._mutex:
            self._counts.add("offered")
            if not self._sampler():
                return False
            self._counts.add("sampled")
            if self._closed or self._thread is None:
                return self._dropped("dropped_closed")
            if self._pending >= self._most:
                return self._dropped("dropped_queue")
        try:
            given = text() if callable(text) else text
            nbytes = sys.getsizeof(given) + (0 if isinstance(given, str) else sum(map(sys.getsizeof, given)))
            if isinstance(ids, np.ndarray) and ids.flags.writeable:
                ids = ids.copy()
            nbytes += ids.nbytes if isinstance(ids, np.ndarray) else sys.getsizeof(ids)
        except Exception as e:
            with self._lock:
                return self._failed(f"{type(e).__name__} of the offered text or ids")
        sample = Sample(tokenizer, given, ids, special_tokens, add_special_tokens, request, time.monotonic(), nbytes)
        with self._lock:
            if self._closed:
                return self._dropped("dropped_closed")
            if self._pending >= self._most:
                return self._dropped("dropped_queue")
            if self._bytes + nbytes > self._max_bytes:
                return self._dropped("dropped_bytes")
            self._pending += 1
            self._bytes += nbytes
            self._queue.append(sample)
            self._lock.notify_all()
            return True

    def _dropped(self, why: str) -> bool:
        self._counts.add("dropped", why)
        return False

    def _failed(self, error: str) -> bool:
        self._counts.add("errors")
        self._counts.last_error = error
        return False

    # -- what it found ---------------------------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """Share of results that is checked."""
        return self._sampler.rate

    @property
    def quarantined(self) -> frozenset[str]:
        """Names of tokenizers with a mismatch, where quarantine is on: serve these from the reference."""
        return self._quarantined

    def release(self, tokenizer: str) -> None:
        """Take a tokenizer out of quarantine; the next mismatch puts it in again."""
        with self._lock:
            self._quarantined -= {tokenizer}

    @property
    def pending(self) -> int:
        """Results that wait or are being checked."""
        return self._pending

    @property
    def worker_pid(self) -> int | None:
        """Process id of the worker, None where there is none just now."""
        worker = self._worker
        return None if worker is None else worker.pid

    def smallest(self, tokenizer: str) -> FailingInput | None:
        """The smallest failing input of a tokenizer so far."""
        return self._keeper.smallest.get(tokenizer)

    def stats(self) -> dict[str, Any]:
        """Counts since the start, JSON-ready: rate, pending, pending_bytes, quarantined and those of VerifierCounts."""
        with self._lock:
            counts = self._counts.copy()
            held = {"pending": self._pending, "pending_bytes": self._bytes}
            quarantined = sorted(self._quarantined)
        return {"rate": self.rate, **held, **counts.described(), "quarantined": quarantined}

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Keep a worker and hand it one sample at a time, until closed."""
        pause, sample, attempts, failures = _PAUSES[0], None, 0, 0
        while not self._closed:
            failures += 1
            try:
                worker = self._started()
                failures = 0
                while not self._closed:
                    sample = sample or self._next()
                    if sample is None:
                        break
                    attempts += 1
                    good = True
                    try:
                        good = self._check(worker, sample)
                    except HandOverError as e:
                        self._give_up(sample, str(e))
                    sample, attempts, pause = None, 0, _PAUSES[0]
                    if not good:
                        raise PipeClosed
            except Exception as e:
                if self._closed:
                    break
                hung, known = isinstance(e, PipeTimeout), isinstance(e, (PipeClosed, PipeTimeout, OSError))
                if not known:
                    log.exception("the verifier's thread")
                if sample is not None and (hung or not known or attempts >= _ATTEMPTS):
                    self._give_up(sample, f"the worker {'hung' if hung else 'ended'} over this text")
                    sample, attempts = None, 0
                if failures >= _ATTEMPTS:  # it cannot be started: nobody need wait for what is pending
                    self._give_up_all(sample, f"no worker can be started: {e!r}")
                    sample, attempts = None, 0
                self._stop_worker(f"the verifier's worker {'hangs' if hung else 'ended'}: {e!r}")
                with self._lock:
                    self._lock.wait_for(lambda: self._closed, pause)
                pause = min(2 * pause, _PAUSES[1])
        self._stop_worker("")
        with self._lock:
            if sample is not None:
                self._settle(sample, "dropped", "dropped_closed")
            self._lock.notify_all()

    def _started(self) -> WorkerProcess:
        sources = {name: tokenizer.core.source for name, tokenizer in self._tokenizers.items()}
        worker = WorkerProcess(sources, self._nice)
        with self._lock:
            self._worker = worker
            if self._closed:
                worker.kill()
        worker.hello()
        return worker

    def _stop_worker(self, why: str) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
            if why:
                self._counts.add("restarts")
                self._counts.last_error = why
        if worker is not None:
            if why:
                worker.kill()
                log.warning("%s; it is started again", why)
            worker.close()

    def _next(self) -> Sample | None:
        """The sample that has waited longest, None once closed."""
        with self._lock:
            # Looks at the worker now and then, so that one which was killed while idle is replaced before it is needed.
            while not self._queue and not self._closed:
                if not self._lock.wait(1.0) and self._worker is not None and not self._worker.alive:
                    raise PipeClosed
            return self._queue.popleft() if self._queue else None

    def _check(self, worker: WorkerProcess, sample: Sample) -> bool:
        """One sample through the worker, and what follows from the verdict; is the worker still good?"""
        made = message(sample, self._tokenizers)
        seconds = self._timeout + made.n_chars / _CHARS_A_SECOND
        worker.send(made.head, made.bodies, seconds)
        verdict = worker.receive(seconds)[0]
        delay = time.monotonic() - sample.delivered
        if verdict["verdict"] == "failed":
            self._give_up(sample, verdict["error"])
            return True
        wrong = verdict["verdict"] != "equal"
        with self._lock:
            self._counts.verdict(delay, verdict.get("seconds", 0.0), made.n_bytes, bool(verdict.get("unsteady")))
            self._busy = wrong
            if wrong and self._quarantine:
                self._quarantined |= {sample.tokenizer}
            self._settle(sample, "checked", *(["mismatched"] if wrong else []))
        if not wrong:
            return True
        try:
            text = "".join(made.parts)
            digest = self._keeper.digest(text)
            self._alarm(self._mismatch(sample, verdict, text, digest, made.n_ids, delay))
            if verdict["verdict"] == "differs":
                self._keep(worker, sample, text, digest)
        except (PipeClosed, PipeTimeout):  # the verdict stands
            return False
        except Exception as e:
            log.exception("what follows a mismatch")
            with self._lock:
                self._counts.add("keep_errors")
                self._counts.last_error = f"the failing input cannot be kept: {type(e).__name__}: {e}"
        finally:
            with self._lock:
                self._busy = False
                self._lock.notify_all()
        return True

    def _mismatch(
        self, sample: Sample, verdict: dict[str, Any], text: str, digest: str, n_got: int, delay: float
    ) -> Mismatch:
        shown = self._keeper.keep == "text"
        return Mismatch(
            tokenizer=sample.tokenizer,
            fingerprint=self._tokenizers[sample.tokenizer].fingerprint,
            request=sample.request,
            position=verdict.get("position", 0),
            n_chars=len(text),
            n_want=verdict.get("n_want", 0),
            n_got=n_got,
            digest=digest,
            delay=delay,
            error=verdict.get("error", ""),
            first=verdict.get("from", 0),
            want=tuple(verdict.get("want", ())) if shown else (),
            got=tuple(verdict.get("got", ())) if shown else (),
            text=text if shown else None,
        )

    def _alarm(self, found: Mismatch) -> None:
        log.error(
            "%s: delivered ids are not the reference's, from index %d of %d on (text of %d characters, hmac %s)",
            found.tokenizer,
            found.position,
            found.n_got,
            found.n_chars,
            found.digest[:16],
        )
        with self._lock:
            self._counts.add("alarms")
        if self._on_alarm is None:
            return
        try:
            self._on_alarm(found)
        except Exception:
            log.exception("on_alarm raised")
            with self._lock:
                self._counts.add("alarm_errors")

    def _keep(self, worker: WorkerProcess, sample: Sample, text: str, digest: str) -> None:
        """Receive the shortened input and keep it if it is the smallest."""
        head, bodies = worker.receive(2 * self._timeout + len(text) / _CHARS_A_SECOND)
        if head["verdict"] != "reduced":
            return
        short = bodies[0].decode("utf-8", "surrogatepass")
        want, got = (np.frombuffer(b, np.int64).tolist() for b in bodies[1:])
        found = FailingInput(
            tokenizer=sample.tokenizer,
            fingerprint=self._tokenizers[sample.tokenizer].fingerprint,
            special_tokens=sample.special_tokens,
            add_special_tokens=sample.add_special_tokens,
            reproduced=head["reproduced"],
            n_chars=len(short),
            n_want=len(want),
            n_got=len(got),
            digest=self._keeper.digest(short),
            request_digest=digest,
            text=short,
            want=tuple(want),
            got=tuple(got),
        )
        self._keeper.offer(found)

    def _give_up(self, sample: Sample, error: str) -> None:
        with self._lock:
            self._counts.last_error = error
            self._settle(sample, "errors")

    def _give_up_all(self, sample: Sample | None, error: str) -> None:
        with self._lock:
            self._counts.last_error = error
            for one in [*([] if sample is None else [sample]), *self._queue]:
                self._settle(one, "errors")
            self._queue.clear()

    def _settle(self, sample: Sample, *counts: str) -> None:
        """A sample is done with, one way or the other; the lock is held."""
        self._counts.add(*counts, tokenizer=sample.tokenizer)
        self._pending -= 1
        self._bytes -= sample.nbytes
        self._lock.notify_all()


_alive: weakref.WeakSet[Verifier] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for verifier in list(_alive):
        verifier.close()
