"""The ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import NoReturn

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import toktier
from toktier.tier import Tier

from . import sessions, tokens, wire
from .errors import ApiError
from .gate import Gate
from .settings import Settings
from .state import State, state


def build(tier: Tier, settings: Settings) -> FastAPI:
    """The application; see `toktier.serve.create_app`."""
    service = State(tier, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="toktier",
        version=toktier.__version__,
        summary="Exact token ids, and sessions whose ids are kept exact while their text changes.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.toktier = service
    app.include_router(tokens.router)
    app.include_router(sessions.router)
    app.add_api_route("/metrics", _metrics, methods=["GET"], response_class=Response)
    app.add_api_route("/healthz", _healthz, methods=["GET"], response_class=Response)
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _parameters)  # type: ignore[arg-type]
    app.add_middleware(Gate, settings=settings, metrics=service.metrics)
    return app


async def _metrics(request: Request) -> Response:
    """What Prometheus reads."""
    service = state(request)
    content, kind = await service.off_loop(service.metrics.page, request.headers.get("accept", ""))
    return Response(content, headers={"content-type": kind})


async def _healthz(request: Request) -> Response:
    """Whether the service takes requests."""
    served = list(state(request).tier.tokenizers)
    content = {"status": "ok", "version": toktier.__version__, "models": len(served)}
    return Response(wire.dump(content), media_type="application/json")


async def _http(request: Request, error: HTTPException) -> NoReturn:
    """What the router refuses."""
    path = "there is no such address; the endpoints are listed at /docs and /openapi.json"
    says = {
        404: ("not_found", path),
        405: ("method_not_allowed", f"this address takes {(error.headers or {}).get('Allow', 'another method')}"),
    }
    type, message = says.get(error.status_code, ("refused", "the request was refused"))
    headers = {k.lower(): v for k, v in (error.headers or {}).items()}
    raise ApiError(error.status_code, type, message, headers=headers)


async def _parameters(request: Request, error: RequestValidationError) -> NoReturn:
    """A parameter of the path that is not what it must be."""
    fault = error.errors()[0]
    name = str(fault["loc"][-1])
    raise ApiError(422, "invalid_request", f"{name}: {fault['msg']}", name)
