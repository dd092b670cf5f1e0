"""The OpenAPI document is true: schemathesis sends what it allows, and what it forbids."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from gateway.app import Gateway
from gateway.settings import load_settings
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import FAST, running


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    started = threading.Event()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()
    urls: list[str] = []

    async def serve() -> None:
        with FakeEngine() as engine:
            # What is made up of URLs here shall not be probed.
            flags = {"replicas": [engine.url], "registration": {"most": 0}, "log": {"requests": False}}
            async with running({**FAST, **flags}) as gateway:
                urls.append(gateway.url)
                started.set()
                await end.wait()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(30)
    yield urls[0]
    loop.call_soon_threadsafe(end.set)
    thread.join(30)


async def document() -> dict[str, Any]:
    gateway = Gateway(load_settings(flags={"log": {"requests": False}}, environ={}))
    async with gateway.framework.router.lifespan_context(gateway.framework):  # closes what the gateway opened
        return gateway.framework.openapi()


schema = schemathesis.openapi.from_dict(asyncio.run(document()))


@schema.parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_gateway_keeps_its_document(case: schemathesis.Case, url: str) -> None:
    # Which URLs can be reached, and what is one prompt, is more than a schema can say.
    told = not case.path.startswith(("/v1/replicas", "/v1/cache/"))
    beyond = [] if told else [schemathesis.checks.positive_data_acceptance]
    case.call_and_validate(base_url=url, excluded_checks=beyond)
