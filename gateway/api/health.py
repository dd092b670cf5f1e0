"""Health for load balancers and operators, and the metrics page. None of these asks for a key."""

import asyncio
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.drain import Drain
from gateway.fleet import Fleet
from gateway.knowledge import Knowledge
from gateway.knowledge.model import ModelKnowledge
from gateway.telemetry.metrics import GatewayMetrics


def health_router(fleet: Fleet, knowledge: Knowledge, drain: Drain, metrics: GatewayMetrics) -> APIRouter:
    """Routes that tell how the gateway is."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.head("/livez", include_in_schema=False)
    @router.get("/health", summary="The process answers")
    @router.get("/livez", summary="The process answers")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz",
        summary="Requests can be served",
        responses={503: {"description": "Draining, or no replica is up"}},
    )
    async def ready() -> JSONResponse:
        status = "draining" if drain.draining else fleet.trouble or "ok"
        body = {"status": status, "replicas": _replicas(fleet), "models": _models(knowledge)}
        return JSONResponse(body, 200 if status == "ok" else 503)

    @router.head("/metrics", include_in_schema=False)
    @router.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics_page() -> Response:
        return Response(await asyncio.to_thread(metrics.page), media_type=CONTENT_TYPE_LATEST)

    return router


def _models(knowledge: Knowledge) -> list[dict[str, Any]]:
    """What is known of each model's prompts. A model that isn't well known is served all the same."""
    return [
        {
            "name": model.name,
            "prefixes": model.verdict(),
            "settled": model.settled,
            "warnings": list(_warnings(model)),
        }
        for model in knowledge
    ]


def _warnings(model: ModelKnowledge) -> Iterator[str]:
    for name, stream in model.streams().items():
        if not stream.state.connected:
            yield f"{name}: no connection to its KV events"
    for name, follower in model.followers().items():
        if not follower.agent.alive:
            yield f"{name}: no agent: {follower.agent.trouble}"
    for origin in model.index.state().silent:
        yield f"{origin.replica}: no KV events after traffic that must cause some"


def _replicas(fleet: Fleet) -> list[dict[str, Any]]:
    return [
        {
            "name": replica.name,
            "state": replica.state.value,
            "models": sorted(replica.models),
            "requests": replica.requests,
        }
        | ({"reason": replica.reason} if replica.reason else {})
        for replica in fleet
    ]
