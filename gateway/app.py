"""The application: every part made once, from the settings, and wired."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from gateway.access import Access
from gateway.api.body import Bodies
from gateway.api.cache import cache_router
from gateway.api.endpoints import ENDPOINTS
from gateway.api.generation import Generation
from gateway.api.health import health_router
from gateway.api.models import models_router
from gateway.api.openapi import add_endpoints
from gateway.api.replicas import replicas_router
from gateway.api.route import route_router
from gateway.api.stored import Stored
from gateway.dispatch import Dispatcher
from gateway.drain import Drain
from gateway.errors import GatewayError, Internal, InvalidRequest, MethodNotAllowed, NotFound
from gateway.exchange import App, Front
from gateway.fleet import Builder, Fleet, Roster
from gateway.forwarding import Forwarder
from gateway.headers import sort_request
from gateway.knowledge import Knowledge
from gateway.prefetch import Prefetcher
from gateway.prefetch.metrics import PrefetchMetrics
from gateway.prefetch.tenants import Tenants
from gateway.routing import create_policy
from gateway.settings import Settings
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
        self._prefetch_metrics = PrefetchMetrics(self.metrics.registry)
        self.drain = Drain(settings.shutdown)
        self._builder = Builder(settings.timeouts)
        self.fleet = Fleet(
            [replica for server in settings.replicas for replica in self._builder.build(server)],
            settings.probes,
        )
        self.roster = Roster(self.fleet, self._builder.build, settings.registration.most, self._forget)
        policy = create_policy(settings.routing.policy)
        self.knowledge = Knowledge(
            settings.prefix,
            settings.models,
            self.fleet,
            most=len(self.fleet) + settings.registration.most,
            active=policy.wants_prefix,
        )
        self.dispatcher = Dispatcher(self.fleet, self.knowledge, policy)
        self.metrics.watch(self.fleet, self.knowledge)
        access = Access(settings.access)
        self._bodies = Bodies(settings.limits)
        self.framework = self._framework(access)
        self.prefetcher = Prefetcher(
            self.dispatcher.absent, self._prefetch_metrics, active=settings.routing.prefetch
        )
        forwarder = Forwarder(self.dispatcher, self.prefetcher, settings.timeouts, self.metrics)
        self.app = Front(
            self.framework,
            self._generation(access, forwarder),
            Stored(access, self.drain, forwarder, self._bodies),
            self.metrics,
            log_requests=settings.log.requests,
        )

    def _forget(self, replica: str) -> None:
        self.metrics.forget(replica)
        self._prefetch_metrics.forget(replica)

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
        registration = self.settings.registration
        app.include_router(replicas_router(self.fleet, self.roster, registration, access, self._bodies))
        tenants = Tenants(self.dispatcher, self.settings.tenants)
        app.include_router(cache_router(self.dispatcher, tenants, access, self._bodies))
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
            self.roster.close()
            await self.prefetcher.close()
            await self.fleet.stop()
            await self.knowledge.close()
            self._bodies.close()
            await self._builder.aclose()


def _answer_errors(app: FastAPI) -> None:
    """Answer refusals, the framework's own included, in the envelope."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        return _response(error)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allow = (b"allow", ", ".join(sorted(_methods(app, request.url.path))).encode())
            return _response(
                MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}.", headers=(allow,))
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


def _methods(app: FastAPI, path: str) -> set[str]:
    """Those that a path allows; the framework itself tells only those of the first function that it finds."""
    routes = (route for route in app.routes if isinstance(route, Route) and route.path_regex.match(path))
    return {method for route in routes for method in route.methods or ()}


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
