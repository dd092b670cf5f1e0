"""Clients and agents, closed in the end."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio

from engine_adapters.agent.client import AgentClient
from engine_adapters.agent.server import Agent
from engine_adapters.settings import AgentSettings, PinSettings
from tests.cache.build import Rig
from tests.cache.conftest import make_rig
from tests.engine_adapters.agent.build import Naming, Served

__all__ = ["make_rig"]

MakeClient = Callable[..., AgentClient]


@pytest.fixture
async def client_of() -> AsyncIterator[MakeClient]:
    context = zmq.asyncio.Context()
    async with AsyncExitStack() as stack:
        clients = list[AgentClient]()

        def make(endpoint: str, **settings: Any) -> AgentClient:
            clients.append(AgentClient(endpoint, context, **settings))
            return clients[-1]

        yield make
        for client in clients:
            await stack.enter_async_context(client)
    context.term()


Serve = Callable[..., Served]


@pytest.fixture
def serve(make_rig: Callable[..., Rig], tmp_path: Path) -> Iterator[Serve]:
    """Agents over hierarchies; after each test nothing of them is left, and all books agree."""
    served: list[Served] = []

    def make(
        endpoint: str | None = None,
        *,
        pins: PinSettings | None = None,
        agent: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Served:
        one = make_rig(**settings)
        inside = Naming(one.tiers)
        bind = endpoint or f"ipc://{tmp_path}/agent{len(served)}"
        bound = AgentSettings(bind=bind, **(agent or {}))
        served.append(Served(Agent(inside, bound, pins or PinSettings()), inside, one))
        return served[-1]

    yield make
    for one in served:
        one.agent.close()
        assert not one.agent.running
        assert one.agent.failures == 0
        assert one.rig.tiers.activity().leases == 0


Both = tuple[Served, AgentClient]


@pytest.fixture
def both(serve: Serve, client_of: MakeClient) -> Callable[..., Both]:
    def make(**settings: object) -> Both:
        served = serve(**settings)
        return served, client_of(served.agent.endpoints.control)

    return make
