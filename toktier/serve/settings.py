"""What a service is told when it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from toktier.errors import InputError

UNKNOWN_LENGTH = 2**31 - 1  # `max_model_len` of a model whose length was not given: no limit that we know of


@dataclasses.dataclass(frozen=True)
class Settings:
    """Limits and rules of a service.

    Attributes:
      max_body_bytes: of one request; a larger one is answered 413 as soon as that is known.
      max_pending_bytes: of all bodies held at a time; above it requests are answered 503.
      max_concurrent: requests worked on at a time; above it they are answered 503.
      body_timeout: seconds in which a body must have arrived, else 408.
      timeout: seconds for the work behind a request, else 504.
      send_timeout: seconds in which a client must have taken each part of a response.
      token: the bearer token that every request but `GET /healthz` must have; None for none.
      hosts: names that the Host header may have, without port; None for any.  It guards a service without a token
        against web pages that have their own name point to this machine.
      max_model_len: by model name, what `/tokenize` tells as `max_model_len`.
      access_log: one line a request, without text, session names or headers.
    """

    max_body_bytes: int = 16 << 20
    max_pending_bytes: int = 256 << 20
    max_concurrent: int = 256
    body_timeout: float = 30.0
    timeout: float = 60.0
    send_timeout: float = 60.0
    token: str | None = dataclasses.field(default=None, repr=False)
    hosts: frozenset[str] | None = None
    max_model_len: Mapping[str, int] = dataclasses.field(default_factory=dict)
    access_log: bool = True

    def __post_init__(self) -> None:
        for name in (
            "max_body_bytes",
            "max_pending_bytes",
            "max_concurrent",
            "body_timeout",
            "timeout",
            "send_timeout",
        ):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}={getattr(self, name)!r} must be above 0")
        if self.max_pending_bytes < self.max_body_bytes:
            raise InputError(
                f"max_pending_bytes={self.max_pending_bytes} is below max_body_bytes={self.max_body_bytes}: "
                "no request of that size could be taken"
            )
        if self.token is not None and (
            len(self.token) < 16 or not self.token.isascii() or not self.token.isprintable()
        ):
            raise InputError("the token must be at least 16 printable ASCII characters: make one with a password tool")
