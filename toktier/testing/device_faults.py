"""A device that fails or waits on purpose, for tests of what stands on it.

Both act where `toktier.device.DeviceEngine` hands a buffer to the compiled program, so everything above is the real
thing: `Tokenizer.encode(engine="device")` raises, a `toktier.tier.Tier` spills to the host.  Nothing else changes, and
the device is as it was when the `with` block ends.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from toktier.errors import InputError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

# What XLA says, by kind; each is raised as jax.errors.JaxRuntimeError.
MESSAGES = {
    "memory": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.",
    "lost": "INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
}


class Failures:
    """What a failing device did.

    Attributes:
      raised: launches that failed.
      passed: launches that went through.
    """

    def __init__(self, times: int | None) -> None:
        self.raised = self.passed = 0
        self._left = times

    def _next(self) -> bool:
        """Whether this launch fails."""
        if self._left is None or self.raised < self._left:
            self.raised += 1
            return True
        self.passed += 1
        return False


@contextlib.contextmanager
def failing_device(
    tokenizer: Tokenizer, kind: str = "memory", times: int | None = None, error: BaseException | None = None
) -> Iterator[Failures]:
    """Launches of a tokenizer's device fail.

    Args:
      tokenizer: its device is started by this, where it was not.
      kind: one of MESSAGES.
      times: how many launches fail; None for all.
      error: raise this instead, such as an exception that no device would raise.

    Yields:
      Failures.

    >>> import toktier
    >>> tok = toktier.load("o200k_base")
    >>> with failing_device(tok, times=1) as failures:
    ...     try:
    ...         tok.encode("hello", engine="device")
    ...     except Exception as e:
    ...         print(type(e).__name__)
    JaxRuntimeError
    >>> failures.raised, failures.passed
    (1, 0)
    """
    import jax

    if kind not in MESSAGES:
        raise InputError(f"kind={kind!r} is not known: use one of {', '.join(MESSAGES)}")
    failures = Failures(times)

    def launch(real: Callable[..., Any], part: Any) -> Any:
        if failures._next():
            raise jax.errors.JaxRuntimeError(MESSAGES[kind]) if error is None else error
        return real(part)

    with _replaced(tokenizer, launch):
        yield failures


class Held:
    """Launches that wait.

    Attributes:
      waiting: set while one waits.
    """

    def __init__(self) -> None:
        self.waiting = threading.Event()
        self._go = threading.Event()

    def release(self) -> None:
        """Let them go on, and all later ones pass."""
        self._go.set()


@contextlib.contextmanager
def held_device(tokenizer: Tokenizer) -> Iterator[Held]:
    """Launches of a tokenizer's device wait until `release` is called, at the latest when the block ends."""
    held = Held()

    def launch(real: Callable[..., Any], part: Any) -> Any:
        held.waiting.set()
        held._go.wait()
        return real(part)

    with _replaced(tokenizer, launch):
        try:
            yield held
        finally:
            held.release()


@contextlib.contextmanager
def _replaced(tokenizer: Tokenizer, launch: Callable[[Callable[..., Any], Any], Any]) -> Iterator[None]:
    engine = tokenizer.core.device
    real = engine._launch
    engine._launch = lambda part: launch(real, part)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del engine._launch
