"""`POST /v1/route`: where a request would go and why, without sending it."""

from typing import Any

from fastapi import APIRouter, Request, Response

from engine_adapters.events import Tier
from gateway.access import Access
from gateway.api.body import Bodies, ClientLeft, Fields
from gateway.api.endpoints import CHAT, COMPLETIONS, RESPONSES, Endpoint
from gateway.api.generation import CLIENT_LEFT
from gateway.dispatch import Dispatcher
from gateway.dispatch import Request as Asked
from gateway.errors import InvalidRequest
from gateway.headers import sort_request
from gateway.routing import Candidate, Decision, Prompt
from gateway.routing.loading import Tiers

_BY_FIELD = {"messages": CHAT, "prompt": COMPLETIONS, "input": RESPONSES}


def route_router(dispatcher: Dispatcher, access: Access, bodies: Bodies) -> APIRouter:
    """The route that explains routing; for holders of an admin key, since it shows what lies where."""
    router = APIRouter()

    @router.post(
        "/v1/route",
        summary="Where a request would go, and why; the body is the request's own",
        response_model=dict[str, Any],
    )
    async def route(request: Request) -> dict[str, Any] | Response:
        incoming = sort_request(request.scope["headers"])
        access.check_admin(incoming.credential)
        try:
            raw = await bodies.read(request.receive, incoming.content_length)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)  # nobody reads it; it is for the log
        fields = await bodies.parse(raw, lambda fields: _endpoint(fields).check(fields))
        endpoint = _endpoint(fields)
        asked = Asked(
            request.scope["exchange"].request_id.decode(),
            endpoint.path,
            fields["model"],
            fields,
            len(raw),
        )
        dispatch = await dispatcher.look_up(asked)
        return _explain(dispatcher.decide(dispatch), dispatch.context.prompt)

    return router


def _endpoint(fields: Fields) -> Endpoint:
    for field, endpoint in _BY_FIELD.items():
        if field in fields:
            return endpoint
    raise InvalidRequest(
        "Send the body of a chat, a completion or a response: 'messages', 'prompt' or 'input'."
    )


def _explain(decision: Decision, prompt: Prompt) -> dict[str, Any]:
    return {
        "replica": decision.chosen.replica.name,
        "prompt": {
            "tokens": prompt.tokens,
            "known": prompt.keys is not None,
            "unknown": str(prompt.unknown) or None,
        },
        "candidates": [_terms(candidate) for candidate in decision.candidates],
    }


def _terms(candidate: Candidate) -> dict[str, Any]:
    return {
        "replica": candidate.replica.name,
        "held_tokens": _by_tier(candidate.held),
        "cached_tokens": _by_tier(candidate.cached),
        "prefill_tokens": candidate.prefill_tokens,
        "queue_s": candidate.queue_s,
        "load_s": candidate.load_s,
        "prefill_s": candidate.prefill_s,
        "overhead_s": candidate.overhead_s,
        "ttft_s": candidate.ttft_s,
        "requests": candidate.replica.load,
        "agent": _agent(candidate),
    }


def _by_tier(tokens: Tiers) -> dict[str, int]:
    return {tier.name.lower(): tokens[tier] for tier in Tier}


def _agent(candidate: Candidate) -> dict[str, Any] | None:
    """By what the replica's agent decides what to load, and up to where it would for this prompt."""
    agent = candidate.replica.agent
    costs = agent.economics if agent is not None else None
    if agent is None or costs is None:
        return None
    return {
        "cut": sum(candidate.cached),
        "threshold": costs.threshold,
        "page_tokens": costs.page_tokens,
        "prefill_tokens_per_s": costs.prefill_tokens_per_s,
        "tokens_per_s": {tier.name.lower(): rate for tier, rate in agent.rates.items()},
    }
