"""The service: a `Tier` over HTTP.  Needs the extra `serve`; the client (`toktier.serve.client`) needs nothing.

`toktier serve` runs it; `create_app(tier, settings)` gives the ASGI application to another server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from toktier.tier import Tier

__all__ = ["Settings", "create_app"]


def create_app(tier: Tier, settings: Settings | None = None, **options: Any) -> FastAPI:
    """The ASGI application that serves a tier.

    Args:
      tier: what answers; closed when the application shuts down.
      settings: limits, token and the like; see `Settings`.
      options: fields of `Settings`, in place of `settings`.

    Raises:
      MissingExtraError: FastAPI or prometheus-client is not installed.
    """
    from toktier.extras import need

    for package in ("fastapi", "prometheus_client"):
        need(package, "serve", "toktier.serve")
    from .app import build

    return build(tier, settings or Settings(**options))
