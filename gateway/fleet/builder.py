"""From a server's settings to its replicas."""

from pathlib import Path

from httpx_aiohttp.httpx2 import AiohttpTransport

from engine_adapters.base import Address
from engine_adapters.engines import create_engine
from engine_adapters.http import Connection, Timeouts, create_transport
from engine_adapters.subscriber import Endpoints
from gateway.fleet.replica import Replica
from gateway.settings import ReplicaSettings, TimeoutSettings


class Builder:
    """Makes replicas, which share a transport as far as they are trusted alike."""

    def __init__(self, timeouts: TimeoutSettings) -> None:
        # A silence may last as long as the wait for the first chunk, which the forwarder bounds.
        self._timeouts = Timeouts(timeouts.connect_s, max(timeouts.idle_s, timeouts.first_chunk_s))
        self._transports: dict[tuple[bool, Path | None], AiohttpTransport] = {}

    def build(self, settings: ReplicaSettings) -> list[Replica]:
        """A replica for each data-parallel rank of a server."""
        connection = Connection(
            str(settings.url), self._transport(settings), self._timeouts, settings.credential()
        )
        events = settings.events and Endpoints(settings.events, settings.replay, settings.bind_events)
        agent = settings.agent_address()
        addresses = (
            Address(connection, events or None, rank, settings.ranks, agent) for rank in range(settings.ranks)
        )
        return [
            Replica(name, create_engine(settings.engine, address), address.rank)
            for name, address in zip(settings.rank_names(), addresses, strict=True)
        ]

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            await transport.aclose()

    def _transport(self, settings: ReplicaSettings) -> AiohttpTransport:
        trust = (settings.url.scheme == "https", settings.ca_file)
        if trust not in self._transports:
            self._transports[trust] = create_transport(settings.ca_file, tls=trust[0])
        return self._transports[trust]
