"""The application: every part made once, from the settings, and wired."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from engine_adapters.engines import create_engine
from engine_adapters.http import Connection, Timeouts, create_transport
from gateway.access import Access
from gateway.api.endpoints import ENDPOINTS
from gateway.api.generation import Generation
from gateway.api.health import health_router
from gateway.api.models import models_router
from gateway.api.openapi import add_endpoints
from gateway.drain import Drain
from gateway.errors import GatewayError, InvalidRequest, MethodNotAllowed, NotFound
from gateway.exchange import Front
from gateway.fleet import Fleet, Replica
from gateway.forwarding import Forwarder
from gateway.headers import sort_request
from gateway.routing import create_policy
from gateway.settings import Settings
from gateway.telemetry.metrics import GatewayMetrics


class Gateway:
    """One gateway.

    Attributes:
        app: the ASGI application to serve.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = GatewayMetrics()
        self.drain = Drain(settings.shutdown)
        self._transports = {None: create_transport()}
        self.fleet = Fleet([self._replica(replica) for replica in settings.replicas], settings.probes)
        self.metrics.watch(self.fleet)
        self.app = Front(self._build(), self.metrics, log_requests=settings.log.requests)

    def _replica(self, settings: Any) -> Replica:
        if settings.ca_file not in self._transports:
            self._transports[settings.ca_file] = create_transport(settings.ca_file)
        timeouts = self.settings.timeouts
        connection = Connection(
            str(settings.url),
            self._transports[settings.ca_file],
            # A silence may last as long as the wait for the first chunk, which the forwarder bounds.
            Timeouts(timeouts.connect_s, max(timeouts.idle_s, timeouts.first_chunk_s)),
            settings.credential(),
        )
        return Replica(settings.name, create_engine(settings.engine, connection))

    def _build(self) -> FastAPI:
        access = Access(self.settings.access)
        forwarder = Forwarder(
            self.fleet, create_policy(self.settings.routing.policy), self.settings.timeouts, self.metrics
        )
        app = FastAPI(title="HPKV", lifespan=self._lifespan, redirect_slashes=False)
        for endpoint in ENDPOINTS:
            handler = Generation(endpoint, access, self.drain, forwarder, self.settings.limits.body_bytes)
            app.router.routes.append(Route(endpoint.path, handler, methods=["POST"]))

        def holds_key(request: Request) -> None:
            access.check_api(sort_request(request.scope["headers"]).credential)

        app.include_router(models_router(self.fleet), dependencies=[Depends(holds_key)])
        app.include_router(health_router(self.fleet, self.drain, self.metrics))
        _answer_errors(app)
        _document(app)
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        await self.fleet.start()
        try:
            yield
        finally:
            await self.fleet.stop()
            for transport in self._transports.values():
                await transport.aclose()


def _answer_errors(app: FastAPI) -> None:
    """Turn the framework's refusals into ours, which the front layer answers."""

    async def passed(request: Request, error: Exception) -> None:
        raise error

    async def http(request: Request, error: Exception) -> None:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            raise NotFound(f"No such path: {request.url.path}.") from error
        if error.status_code == 405:
            headers = tuple((k.encode(), v.encode()) for k, v in (error.headers or {}).items())
            raise MethodNotAllowed(
                f"{request.method} is not allowed on {request.url.path}.", headers=headers
            ) from error
        raise InvalidRequest(str(error.detail)) from error

    async def invalid(request: Request, error: Exception) -> None:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        raise InvalidRequest(f"Invalid '{field}': {first['msg']}.", param=field) from error

    for kind, handler in ((GatewayError, passed), (HTTPException, http), (RequestValidationError, invalid)):
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]


def _document(app: FastAPI) -> None:
    framework = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = add_endpoints(framework())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
