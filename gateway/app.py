"""The application: every part made once, from the settings, and wired."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from httpx_aiohttp.httpx2 import AiohttpTransport
from starlette.exceptions import HTTPException

from engine_adapters.base import Address
from engine_adapters.engines import create_engine
from engine_adapters.http import Connection, Timeouts, create_transport
from engine_adapters.subscriber import Endpoints
from gateway.access import Access
from gateway.api.body import Bodies
from gateway.api.endpoints import ENDPOINTS
from gateway.api.generation import Generation
from gateway.api.health import health_router
from gateway.api.models import models_router
from gateway.api.openapi import add_endpoints
from gateway.api.route import route_router
from gateway.api.stored import Stored
from gateway.dispatch import Dispatcher
from gateway.drain import Drain
from gateway.errors import GatewayError, Internal, InvalidRequest, MethodNotAllowed, NotFound
from gateway.exchange import App, Front
from gateway.fleet import Fleet, Replica
from gateway.forwarding import Forwarder
from gateway.headers import sort_request
from gateway.knowledge import Knowledge
from gateway.routing import create_policy
from gateway.settings import ReplicaSettings, Settings
from gateway.telemetry.metrics import GatewayMetrics


class Gateway:
    """One gateway.

    Attributes:
        app: the ASGI application to serve.
        framework: the part of it that FastAPI answers; it also holds the OpenAPI document.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = GatewayMetrics()
        self.drain = Drain(settings.shutdown)
        self._transports: dict[tuple[bool, Path | None], AiohttpTransport] = {}
        self.fleet = Fleet(
            [replica for server in settings.replicas for replica in self._replicas(server)], settings.probes
        )
        policy = create_policy(settings.routing.policy)
        self.knowledge = Knowledge(settings.prefix, settings.models, self.fleet, active=policy.wants_prefix)
        self.dispatcher = Dispatcher(self.fleet, self.knowledge, policy)
        self.metrics.watch(self.fleet, self.knowledge)
        access = Access(settings.access)
        self._bodies = Bodies(settings.limits)
        self.framework = self._framework(access)
        forwarder = Forwarder(self.dispatcher, settings.timeouts, self.metrics)
        self.app = Front(
            self.framework,
            self._generation(access, forwarder),
            Stored(access, self.drain, forwarder, self._bodies),
            self.metrics,
            log_requests=settings.log.requests,
        )

    def _replicas(self, settings: ReplicaSettings) -> Iterator[Replica]:
        """A replica for each data-parallel rank of a server."""
        trust = (settings.url.scheme == "https", settings.ca_file)
        if trust not in self._transports:
            self._transports[trust] = create_transport(settings.ca_file, tls=trust[0])
        timeouts = self.settings.timeouts
        connection = Connection(
            str(settings.url),
            self._transports[trust],
            # A silence may last as long as the wait for the first chunk, which the forwarder bounds.
            Timeouts(timeouts.connect_s, max(timeouts.idle_s, timeouts.first_chunk_s)),
            settings.credential(),
        )
        events = settings.events and Endpoints(settings.events, settings.replay, settings.bind_events)
        for rank, name in enumerate(settings.rank_names()):
            address = Address(connection, events or None, rank, settings.ranks)
            yield Replica(name, create_engine(settings.engine, address), rank)

    def _generation(self, access: Access, forwarder: Forwarder) -> dict[str, App]:
        return {
            endpoint.path: Generation(endpoint, access, self.drain, forwarder, self._bodies)
            for endpoint in ENDPOINTS
        }

    def _framework(self, access: Access) -> FastAPI:
        app = FastAPI(title="HPKV", lifespan=self._lifespan, redirect_slashes=False)

        def holds_key(request: Request) -> None:
            access.check_api(sort_request(request.scope["headers"]).credential)

        app.include_router(models_router(self.fleet), dependencies=[Depends(holds_key)])
        app.include_router(route_router(self.dispatcher, access, self._bodies))
        app.include_router(health_router(self.fleet, self.knowledge, self.drain, self.metrics))
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
            await self.knowledge.close()
            self._bodies.close()
            for transport in self._transports.values():
                await transport.aclose()


def _answer_errors(app: FastAPI) -> None:
    """Answer refusals, the framework's own included, in the envelope."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        return _response(error)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            headers = tuple((k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items())
            return _response(
                MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}.", headers=headers)
            )
        if error.status_code == 404:
            return _response(NotFound(f"No such path: {request.url.path}."))
        return _response(InvalidRequest(str(error.detail)))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        return _response(InvalidRequest(f"Invalid '{field}': {first['msg']}.", param=field))

    async def unexpected(request: Request, error: Exception) -> Response:
        # The framework raises the error again once this is sent, and the front layer logs it.
        return _response(Internal())

    app.add_exception_handler(GatewayError, refused)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


def _response(error: GatewayError) -> Response:
    response = Response(error.envelope(), error.status)
    response.raw_headers.extend(error.answer_headers())
    return response


def _document(app: FastAPI) -> None:
    framework = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = add_endpoints(framework())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
