"""Whom an engine speaks with beside its clients: those who ask its agent, and the gateway."""

import logging

from engine_adapters.agent.base import Inside
from engine_adapters.agent.keys import public_of
from engine_adapters.agent.server import Agent
from engine_adapters.registration import Registration, Replica, reachable
from engine_adapters.settings import GatewaySettings, Settings


class Outside:
    """The agent and the registration, as far as the settings ask for them."""

    def __init__(
        self, settings: Settings, inside: Inside, rank: int, first: tuple[str, str], log: logging.Logger
    ) -> None:
        """`rank` is of data parallelism; `first`, where the first rank binds its KV events and their replay.

        Raises SettingsError if the agent can't have its addresses.
        """
        self._agent = open_agent(settings, inside, rank, log)
        self._place = take_place(settings, inside, rank, first)

    def close(self) -> None:
        """The gateway is told first."""
        for part in (self._place, self._agent):
            if part is not None:
                part.close()
        self._place = self._agent = None


def open_agent(settings: Settings, inside: Inside, rank: int, log: logging.Logger) -> Agent | None:
    """The agent of one data-parallel rank. Raises SettingsError if it can't have its addresses."""
    if settings.agent.bind is None:
        return None
    agent = Agent(inside, settings.agent, settings.pins, rank)
    log.info("agent at %s", agent.endpoints.control)
    return agent


def take_place(
    settings: Settings,
    inside: Inside,
    rank: int,
    first: tuple[str, str],
    held: Registration | None = None,
) -> Registration | None:
    """The server's place at the gateway, which its first rank takes. One that is `held` already is kept if it
    is the same, else left."""
    gateway = None if rank else settings.gateway
    replica = _replica(settings, gateway, inside.facts().engine, first) if gateway is not None else None
    if held is not None:
        if held.of == (gateway, replica):
            return held
        held.close()
    return Registration(gateway, replica) if gateway is not None and replica is not None else None


def _replica(settings: Settings, gateway: GatewaySettings, engine: str, first: tuple[str, str]) -> Replica:
    """The server of which this is the first rank; a gateway counts the others from its addresses."""
    ends = (*first, settings.agent.bind or "")
    events, replay, agent = (reachable(end, gateway.replica_url) for end in ends)
    key_file = settings.agent.key_file
    return Replica(
        url=gateway.replica_url,
        engine=engine,
        events=events,
        replay=replay,
        agent=agent,
        agent_key=public_of(key_file) if agent and key_file is not None else "",
        ranks=gateway.ranks,
    )
