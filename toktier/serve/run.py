"""The service as a process: a socket, uvicorn, and an end that finishes what was accepted."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from toktier.errors import InputError
from toktier.extras import need

from . import auth, create_app
from .settings import Settings

if TYPE_CHECKING:
    from toktier.tier import Tier

BACKLOG = 2048


def bind(host: str, port: int, guarded: bool) -> socket.socket:
    """A socket that is bound, and does not listen yet.

    Args:
      host, port: where; port 0 takes a free one.
      guarded: whether the service has a token, or is meant to be open to everybody.

    Raises:
      InputError: others than this machine could reach it, and it is not guarded.
      OSError: no such address, or the port is taken.
    """
    if not guarded and not auth.is_loopback(host):
        raise InputError(
            f"--host {host} can be reached from other machines and there is no token: put one into "
            f"{auth.TOKEN_VARIABLE} or a --token-file, or say --allow-anonymous"
        )
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as e:
        bound.close()
        raise OSError(e.errno, f"cannot listen on {host} port {port}: {e.strerror}") from None
    return bound


def address(bound: socket.socket) -> str:
    """`http://127.0.0.1:8000`."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    tier: Tier, settings: Settings, bound: socket.socket, *, grace: float, ready: Callable[[], None] = lambda: None
) -> None:
    """Serves until SIGTERM or SIGINT.

    Then no connection is taken any more, requests that were taken are finished (for `grace` seconds), and the tier is
    closed.

    Args:
      ready: called when connections are taken.
    """
    uvicorn = need("uvicorn", "serve", "toktier serve")
    need("prometheus_client", "serve", "toktier serve").disable_created_metrics()  # when each series began: for nobody

    class Server(uvicorn.Server):  # type: ignore[name-defined,misc]
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                ready()

    config = uvicorn.Config(
        create_app(tier, settings),
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=65,
        timeout_graceful_shutdown=max(1, round(grace)),
    )
    # uvicorn takes the signal, ends in peace, and then raises it again for whoever had it before: that is for us to end
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    Server(config).run(sockets=[bound])


def named(sources: tuple[str, ...]) -> dict[str, str]:
    """Models by name from `NAME=SOURCE`, or `SOURCE` alone for one that is its own name.

    Raises:
      InputError: a name that is empty, given twice, or not of printable ASCII.
    """
    models: dict[str, str] = {}
    for text in sources:
        name, mark, source = text.partition("=")
        source = source if mark else name
        if not name or not source or not name.isascii() or not name.isprintable():
            raise InputError(f"--model {text!r}: give NAME=SOURCE, the name in printable ASCII")
        if name in models:
            raise InputError(f"--model {text!r}: the name {name!r} is given twice")
        models[name] = source
    return models


def lengths(given: tuple[str, ...], models: Mapping[str, str]) -> dict[str, int]:
    """`max_model_len` by model from `NAME=N`, or `N` alone for all."""
    found: dict[str, int] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        if not number.isdecimal() or not 0 < int(number) < 2**31 or (name and name not in models):
            raise InputError(f"--max-model-len {text!r}: give NAME=N or N, with the name of a --model and N above 0")
        found.update(dict.fromkeys([name] if name else models, int(number)))
    return found
