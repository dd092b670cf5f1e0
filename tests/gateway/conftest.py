"""A gateway on a real uvicorn in the test's own event loop, before fake engines."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from typing import Any

import httpx2
import pytest
import uvicorn
from openai import AsyncOpenAI

from gateway.app import Gateway
from gateway.listener import listener
from gateway.settings import load_settings
from tests.fakes.engine import FakeEngine

FAST = {
    "probes": {"interval_s": 0.05, "timeout_s": 5.0, "failures": 3},
    "prefix": {"index_blocks": 1 << 14},
}
"""Probes fast enough for tests that wait for them, and a small index."""


class Listener(uvicorn.Server):
    """uvicorn that leaves the test runner's signal handlers alone, and comes and goes without its pauses."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.end = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.up.set()
        await self.end.wait()

    async def shutdown(self, sockets: Any = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for task in list(self.server_state.tasks):
            task.cancel()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.transport.close()
        for server in self.servers:
            await server.wait_closed()
        await self.lifespan.shutdown()


class Running:
    """A gateway that serves, and a client for it."""

    def __init__(self, gateway: Gateway, url: str) -> None:
        self.gateway = gateway
        self.url = url
        # Nothing here speaks TLS, and loading the authorities takes longer than most tests.
        self.client = httpx2.AsyncClient(base_url=url, timeout=20, verify=False)

    @cached_property
    def sdk(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def aclose(self) -> None:
        await self.client.aclose()
        if "sdk" in self.__dict__:
            await self.sdk.close()

    async def chat(self, content: str = "hello", **fields: Any) -> httpx2.Response:
        return await self.client.post("/v1/chat/completions", json=chat(content, **fields))


def chat(content: str = "hello", model: str = "fake", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


Serve = Callable[..., Awaitable[Running]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """`await serve(engine, …, section={…})` starts a gateway before these engines (or URLs)."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*engines: FakeEngine | str, **sections: Any) -> Running:
            replicas = [
                {"url": engine if isinstance(engine, str) else engine.url, "name": f"replica-{i}"}
                for i, engine in enumerate(engines)
            ]
            sections = {"log": {"requests": False}, **FAST, "replicas": replicas, **sections}
            return await stack.enter_async_context(running(sections))

        yield start


@contextlib.asynccontextmanager
async def running(flags: dict[str, Any]) -> AsyncIterator[Running]:
    gateway = Gateway(load_settings(flags=flags, environ={}))
    server = Listener(
        uvicorn.Config(
            gateway.app,
            http=listener(gateway.settings.limits),
            port=0,
            log_config=None,
            access_log=False,
        )
    )
    task = asyncio.create_task(server.serve())
    up = asyncio.create_task(server.up.wait())
    await asyncio.wait([task, up], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        up.cancel()
        await task
    port = server.servers[0].sockets[0].getsockname()[1]
    serving = Running(gateway, f"http://127.0.0.1:{port}")
    try:
        yield serving
    finally:
        await serving.aclose()
        server.end.set()
        await task


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as fake:
        yield fake


@pytest.fixture
async def other() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as fake:
        yield fake


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a condition; fail when it doesn't come, which a slow machine must not look like."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
