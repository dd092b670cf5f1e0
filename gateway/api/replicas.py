"""`/v1/replicas`: replicas that come, stay and go by themselves, and a list of all.

For holders of an admin key alone: the gateway sends prompts to whatever is registered.
"""

from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field, ValidationError

from gateway.access import Access
from gateway.api.body import Bodies, ClientLeft, Fields
from gateway.api.generation import CLIENT_LEFT
from gateway.errors import InvalidRequest
from gateway.fleet import Fleet, Lease, Replica, Roster
from gateway.headers import sort_request
from gateway.settings import RegistrationSettings, ReplicaSettings, ServerSettings

_Settings = TypeVar("_Settings", bound=ServerSettings)


class Registration(ServerSettings):
    """A server that wants requests, for `lease_s` seconds from now unless it says so again."""

    lease_s: float = Field(default=30.0, ge=5, le=300)


def replicas_router(
    fleet: Fleet, roster: Roster, settings: RegistrationSettings, access: Access, bodies: Bodies
) -> APIRouter:
    """Routes by which replicas register."""

    def holds_admin_key(request: Request) -> None:
        access.check_admin(sort_request(request.scope["headers"]).credential)

    router = APIRouter(dependencies=[Depends(holds_admin_key)])

    @router.post(
        "/v1/replicas",
        summary="Register a replica, or renew its lease",
        response_model=dict[str, Any],
    )
    async def register(request: Request) -> dict[str, Any] | Response:
        incoming = sort_request(request.scope["headers"])
        try:
            raw = await bodies.read(request.receive, incoming.content_length)
        except ClientLeft:
            return Response(status_code=CLIENT_LEFT)  # nobody reads it; it is for the log
        asked = _read(Registration, await bodies.parse(raw, lambda fields: None))
        roster.register(_settings(asked, settings), asked.lease_s)
        return {"name": asked.name, "lease_s": asked.lease_s}

    @router.get("/v1/replicas", summary="All replicas, with state and lease")
    async def list_replicas() -> dict[str, Any]:
        return {"object": "list", "data": [_told(replica, roster.lease(replica.name)) for replica in fleet]}

    @router.delete("/v1/replicas/{name}", summary="End a registration; requests in flight finish")
    async def withdraw(name: str) -> dict[str, Any]:
        roster.withdraw(name)
        return {"name": name, "deleted": True}

    return router


def _read(kind: type[_Settings], fields: Fields) -> _Settings:
    """Raises InvalidRequest, naming the first field at fault."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    known = ", ".join(Registration.model_fields)
    if first["type"] == "extra_forbidden":
        raise InvalidRequest(f"Unknown field '{field}'; a registration has {known}.", param=field)
    message = first["msg"].removeprefix("Value error, ")
    raise InvalidRequest(f"Invalid '{field}': {message}." if field else f"{message}.", param=field or None)


def _settings(asked: Registration, ours: RegistrationSettings) -> ReplicaSettings:
    """What it says of itself, with what this gateway says of all that register. Raises InvalidRequest."""
    fields = asked.model_dump(exclude={"lease_s"})
    if asked.agent_key is not None:
        if ours.agent_secret_file is None:
            raise InvalidRequest(
                "The agent asks for keys, and the gateway has none: set registration.agent_secret_file.",
                param="agent_key",
            )
        fields["agent_secret_file"] = ours.agent_secret_file
    return _read(ReplicaSettings, fields)


def _told(replica: Replica, lease: Lease | None) -> dict[str, Any]:
    return {
        "name": replica.name,
        "url": replica.engine.connection.url,
        "engine": replica.engine.kind,
        "state": replica.state.value,
        "reason": replica.reason or None,
        "models": sorted(replica.models),
        "requests": replica.requests,
        "registered": lease is not None,
        "lease_s": round(lease.left_s, 1) if lease is not None else None,
        "agent": _told_agent(replica),
    }


def _told_agent(replica: Replica) -> dict[str, Any] | None:
    address, agent = replica.engine.address.rank_agent, replica.agent
    if address is None:
        return None
    trouble = agent.trouble if agent is not None else "it isn't followed while its replica is down"
    return {"address": address.endpoints.control, "alive": not trouble, "reason": trouble or None}
