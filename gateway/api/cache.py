"""`/v1/cache`: tenants have prompts brought up and kept. A salt reaches what requests with it reach."""

from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.access import Access
from gateway.api.body import Bodies, ClientLeft, Fields
from gateway.api.endpoints import Endpoint, Kind
from gateway.api.generation import CLIENT_LEFT
from gateway.dispatch import Dispatcher
from gateway.errors import InvalidRequest
from gateway.exchange import Exchange
from gateway.headers import sort_request
from gateway.prefetch.beginnings import look_up
from gateway.prefetch.tenants import Asked, Pinned, Prefetched, Tenants

_PROMPT = {
    "messages": Kind.OBJECTS,
    "prompt": Kind.TEXT_OR_ARRAY,
    "token_ids": Kind.ARRAY,
    "tools": Kind.OBJECTS,
    "chat_template_kwargs": Kind.OBJECT,
    "add_generation_prompt": Kind.BOOLEAN,
    "continue_final_message": Kind.BOOLEAN,
    "cache_salt": Kind.STRING,
    "ttl_s": Kind.NUMBER,
    "replica": Kind.STRING,
}
PREFETCH = Endpoint(
    "/v1/cache/prefetch", "Bring a prompt's KV up into host memory", {"model": Kind.STRING}, _PROMPT
)
PIN = Endpoint("/v1/cache/pin", "Keep a prompt's KV; ttl_s 0 ends it", {"model": Kind.STRING}, _PROMPT)

_PREFETCH_S = 60.0
_LONGEST_PREFETCH_S = 600.0
_PIN_S = 600.0
_LONGEST_PIN_S = 86_400.0


def cache_router(dispatcher: Dispatcher, tenants: Tenants, access: Access, bodies: Bodies) -> APIRouter:
    """Routes for holders of an API key."""
    router = APIRouter()

    async def asked(request: Request, endpoint: Endpoint, usual_s: float, longest_s: float) -> Asked:
        exchange: Exchange = request.scope["exchange"]
        incoming = sort_request(request.scope["headers"])
        owner = access.check_api(incoming.credential)
        raw = await bodies.read(request.receive, incoming.content_length)
        fields = await bodies.parse(raw, endpoint.check)
        seconds = _seconds(fields, usual_s, longest_s)
        dispatch = await look_up(dispatcher, exchange.request_id.decode(), fields, len(raw))
        exchange.endpoint, exchange.model = endpoint.path, fields["model"]
        return Asked(owner, dispatch, fields.get("cache_salt"), seconds, fields.get("replica") or "")

    @router.post(PREFETCH.path, summary=PREFETCH.summary, response_model=dict[str, Any])
    async def prefetch(request: Request) -> dict[str, Any] | Response:
        try:
            what = await asked(request, PREFETCH, _PREFETCH_S, _LONGEST_PREFETCH_S)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)  # nobody reads it; it is for the log
        if not what.seconds:
            raise InvalidRequest("'ttl_s' of a prefetch must be more than 0.", param="ttl_s")
        return _told_prefetch(what, await tenants.prefetch(what))

    @router.post(PIN.path, summary=PIN.summary, response_model=dict[str, Any])
    async def pin(request: Request) -> dict[str, Any] | Response:
        try:
            what = await asked(request, PIN, _PIN_S, _LONGEST_PIN_S)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)
        if not what.seconds:
            return {"object": "cache.pin.deleted", "ids": await tenants.unpin_prompt(what), "deleted": True}
        return _told_pin(what, await tenants.pin(what))

    @router.delete(PIN.path + "/{pin}", summary="End a pin")
    async def unpin(pin: str, request: Request) -> dict[str, Any]:
        owner = access.check_api(sort_request(request.scope["headers"]).credential)
        await tenants.unpin(owner, pin)
        return {"object": "cache.pin.deleted", "ids": [pin], "deleted": True}

    return router


def _seconds(fields: Fields, usual: float, longest: float) -> float:
    seconds = fields.get("ttl_s")
    if seconds is None:
        return usual
    if not 0 <= seconds <= longest:
        raise InvalidRequest(f"'ttl_s' must be between 0 and {longest:g} seconds.", param="ttl_s")
    return float(seconds)


def _told_prefetch(asked: Asked, done: Prefetched) -> dict[str, Any]:
    return {
        "object": "cache.prefetch",
        "model": asked.dispatch.context.model,
        **done._asdict(),
        "ttl_s": asked.seconds,
    }


def _told_pin(asked: Asked, done: Pinned) -> dict[str, Any]:
    told = done._asdict()
    return {
        "id": told.pop("id"),
        "object": "cache.pin",
        "model": asked.dispatch.context.model,
        **told,
    }
