"""A gateway before a fake engine with a fake agent, both on real sockets."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet import Replica
from gateway.knowledge import agents
from gateway.knowledge.model import ModelKnowledge
from tests.fakes.agent import FakeAgent
from tests.fakes.byte_model import save_byte_model
from tests.gateway.conftest import FAST, Running, running, until
from tests.gateway.test_prefix_routing import Engine


class Site:
    """What a test sees of them. `replicas[i]` has `engines[i]` and `agents[i]`."""

    def __init__(self, served: Running, engines: list[Engine], agents: list[FakeAgent]) -> None:
        self.served = served
        self.client = served.client
        self.engines = engines
        self.agents = agents

    @property
    def model(self) -> ModelKnowledge:
        (model,) = self.served.gateway.knowledge
        return model

    @property
    def replicas(self) -> list[Replica]:
        return list(self.served.gateway.fleet)

    async def settle(self) -> None:
        """Let what the agents published arrive and be applied."""
        for replica, agent in zip(self.replicas, self.agents, strict=True):
            follower = self.model.followers()[replica.name]
            await until(
                lambda follower=follower, agent=agent: (  # type: ignore[misc]
                    follower.stream is not None
                    and follower.stream.state.sequence >= agent.publisher.sequence - 1
                )
            )
        await until(lambda: self.model.feed.backlog == 0)


@pytest.fixture
def agents_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[FakeAgent]]]:
    monkeypatch.setattr(agents, "POLL_S", 0.05)
    with contextlib.ExitStack() as stack:

        def make(count: int) -> list[FakeAgent]:
            made = []
            for number in range(count):
                folder = tmp_path / str(number)
                folder.mkdir()
                made.append(FakeAgent(folder))
                made[-1].start()
                stack.callback(made[-1].stop)
            return made

        yield make


MakeSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def site(agents_of: Callable[[int], list[FakeAgent]], tmp_path: Path) -> AsyncIterator[MakeSite]:
    async with contextlib.AsyncExitStack() as stack:

        async def make(count: int = 1, **sections: Any) -> Site:
            fakes = agents_of(count)
            engines = [await stack.enter_async_context(Engine()) for _ in range(count)]
            flags: dict[str, Any] = {
                **FAST,
                "log": {"requests": False},
                "replicas": [
                    {"url": engine.url, "name": f"replica-{i}", "agent": fake.address}
                    for i, (engine, fake) in enumerate(zip(engines, fakes, strict=True))
                ],
                "models": {"fake": {"tokenizer": str(save_byte_model(tmp_path))}},
                **sections,
            }
            site = Site(await stack.enter_async_context(running(flags)), engines, fakes)
            await until(lambda: any(site.model.tokenizers()))
            await until(lambda: all(r.agent is not None and r.agent.alive for r in site.replicas))
            return site

        yield make
