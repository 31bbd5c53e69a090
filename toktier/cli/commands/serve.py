"""`toktier serve`: the tier as an HTTP service."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from toktier.tier import Verifier

BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Size(click.ParamType):
    """Bytes, with K, M or G for their powers of 1,024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """`16M` is 16777216."""
        if isinstance(value, int):
            return value
        number = value.rstrip("KMGkmg")
        unit = value[len(number) :].upper()
        if not number.isdecimal() or unit not in BYTES or not int(number):
            self.fail(f"{value!r} is no size: give bytes above 0, such as 65536, 512K, 16M or 2G", param, ctx)
        return int(number) * BYTES[unit]


SIZE = Size()
SECONDS = click.FloatRange(0, min_open=True)


@click.command(
    short_help="Serve tokenizers and sessions over HTTP.",
    epilog="Exit status: 0 ended by SIGTERM, 1 a source, token or address that cannot be used, 2 wrong usage, "
    "130 interrupted.",
)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    default=("o200k_base",),
    show_default=True,
    metavar="NAME=SOURCE",
    help="A tokenizer and its name here; may be given many times. The first one is the default.",
)
@click.option("--max-model-len", multiple=True, metavar="[NAME=]N", help="What /tokenize tells as max_model_len.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("-p", "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one.")
@click.option("--token-file", type=click.Path(dir_okay=False), help="Holds the bearer token (else $TOKTIER_TOKEN).")
@click.option("--allow-anonymous", is_flag=True, help="Let other machines in without a token.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="One more name that the service is called by.")
@click.option("--sessions", type=click.Path(file_okay=False), metavar="DIR", help="Keep sessions here, over restarts.")
@click.option("--ttl", type=SECONDS, default=3600.0, show_default=True, help="Seconds a session is kept unused.")
@click.option("--max-session-bytes", type=SIZE, metavar="SIZE", help="Memory for the sessions of a model.")
@click.option("--warmup", is_flag=True, help="First compile the device program and measure this machine.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Threads that tokenize.")
@click.option("--max-queue", type=click.IntRange(1), default=1024, show_default=True, help="Requests in the tier.")
@click.option("--max-concurrent", type=click.IntRange(1), default=256, show_default=True, help="Requests at a time.")
@click.option("--max-body", type=SIZE, default="16M", show_default=True, metavar="SIZE", help="Of one request.")
@click.option("--max-pending", type=SIZE, default="256M", show_default=True, metavar="SIZE", help="Of all bodies held.")
@click.option("--timeout", type=SECONDS, default=60.0, show_default=True, help="Seconds for the work of a request.")
@click.option("--body-timeout", type=SECONDS, default=30.0, show_default=True, help="Seconds for a body to arrive.")
@click.option("--grace", type=SECONDS, default=30.0, show_default=True, help="Seconds to finish requests at the end.")
@click.option(
    "--verify-rate", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="Share of answers checked."
)
@click.option("--verify-directory", type=click.Path(file_okay=False), metavar="DIR", help="Failing inputs go here.")
@click.option("--quarantine", is_flag=True, help="After a wrong answer the reference serves that model.")
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="A line a request, without text.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def command(models: tuple[str, ...], host: str, port: int, grace: float, log_level: str, **chosen: Any) -> None:
    """Serve tokenizers and sessions over HTTP: vLLM's /tokenize and /detokenize, and sessions that answer with patches.

    It listens on this machine alone unless it has a token. SIGTERM ends it when the requests it took are answered.
    See docs/serving.md; the running service describes itself at /docs.

    \b
    Examples:
      toktier serve
      toktier serve -m llama=./llama/tokenizer.json -m gpt=o200k_base --sessions ./sessions
      TOKTIER_TOKEN=$(openssl rand -hex 32) toktier serve --host 0.0.0.0
    """
    from toktier.serve import auth, run
    from toktier.serve.logs import log_to_stderr
    from toktier.serve.settings import Settings

    os.umask(0o077)  # sessions and failing inputs are texts: for nobody else to read
    sources = run.named(models)
    token = auth.read_token(chosen["token_file"])
    limited = token is None and not chosen["allow_anonymous"]
    settings = Settings(
        max_body_bytes=chosen["max_body"],
        max_pending_bytes=chosen["max_pending"],
        max_concurrent=chosen["max_concurrent"],
        body_timeout=chosen["body_timeout"],
        timeout=chosen["timeout"],
        token=token,
        hosts=auth.LOOPBACK_NAMES | {host.lower(), *(h.lower() for h in chosen["allowed_host"])} if limited else None,
        max_model_len=run.lengths(chosen["max_model_len"], sources),
        access_log=chosen["access_log"],
    )
    log_to_stderr(log_level)
    bound = run.bind(host, port, guarded=not limited)
    try:
        tier = _tier(sources, chosen)
        if chosen["warmup"]:
            tier.warmup()
        gc.collect()
        gc.freeze()  # what is there by now stays: no request waits for the collector to walk through it
        shown = f"toktier: serving {', '.join(sources)} on {run.address(bound)}"
        run.serve(tier, settings, bound, grace=grace, ready=lambda: click.echo(shown, err=True))
    finally:
        bound.close()


def _tier(sources: dict[str, str], chosen: dict[str, Any]) -> Any:
    from pathlib import Path

    from toktier.tier import Tier

    directory = chosen["sessions"]
    if directory is not None:
        Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    return Tier(
        sources,
        workers=chosen["workers"],
        max_queue=chosen["max_queue"],
        ttl=chosen["ttl"],
        max_session_bytes=chosen["max_session_bytes"],
        path=directory,
        verifier=_verifier(chosen) if chosen["verify_rate"] else None,
    )


def _verifier(chosen: dict[str, Any]) -> Verifier:
    import logging

    from toktier.tier import Verifier

    log = logging.getLogger("toktier.serve")

    def alarm(found: Any) -> None:
        log.error(
            "WRONG IDS delivered by model=%s fingerprint=%s at id %d of %d (%d chars)",
            *(found.tokenizer, found.fingerprint, found.position, found.n_want, found.n_chars),
        )

    directory = chosen["verify_directory"]
    return Verifier(
        chosen["verify_rate"],
        keep="hash" if directory is None else "text",
        on_alarm=alarm,
        quarantine=chosen["quarantine"],
        directory=directory,
    )
