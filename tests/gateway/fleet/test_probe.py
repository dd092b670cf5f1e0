"""Replicas leave when they fail and come back when they answer."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from engine_adapters.base import Address
from engine_adapters.engines import create_engine
from engine_adapters.errors import EngineTimeout
from engine_adapters.http import Connection, Timeouts, create_transport
from gateway.fleet import Replica, State
from gateway.fleet.probe import Prober
from gateway.settings import ProbeSettings
from tests.fakes.engine import FakeEngine
from tests.gateway.conftest import until


@pytest.fixture
async def replica(engine: FakeEngine) -> AsyncIterator[Replica]:
    transport = create_transport()
    connection = Connection(engine.url, transport, Timeouts(1, 1))
    yield Replica("r", create_engine("vllm", Address(connection)))
    await transport.aclose()


def prober(replica: Replica, **settings: float) -> Prober:
    return Prober(replica, ProbeSettings.model_validate({"interval_s": 60, "timeout_s": 20, **settings}))


async def test_a_good_answer_takes_it_in(replica: Replica) -> None:
    assert replica.state is State.JOINING
    await prober(replica).probe()
    assert replica.up
    assert list(replica.models) == ["fake"]
    assert replica.models["fake"].max_model_len == 8192


async def test_a_refusal_takes_it_out_at_once(replica: Replica, engine: FakeEngine) -> None:
    probes = prober(replica)
    await probes.probe()
    engine.stop()
    await probes.probe()
    assert replica.state is State.DOWN
    assert "no connection" in replica.reason
    engine.start()
    await probes.probe()
    assert replica.up


async def test_an_error_answer_takes_it_out_at_once(replica: Replica, engine: FakeEngine) -> None:
    probes = prober(replica)
    await probes.probe()
    engine.faults.health_status = 503
    await probes.probe()
    assert not replica.up


async def test_silence_is_noticed(replica: Replica, engine: FakeEngine) -> None:
    await prober(replica).probe()
    engine.faults.health_delay_s = 60
    await prober(replica, timeout_s=0.05, failures=1).probe()
    assert not replica.up


async def test_silence_takes_three_probes() -> None:
    pages = Pages()
    replica = behind(pages)
    probes = prober(replica)
    await probes.probe()
    pages.silent = True
    await probes.probe()
    await probes.probe()
    assert replica.up
    await probes.probe()
    assert not replica.up
    pages.silent = False
    await probes.probe()
    assert replica.up


async def test_two_silent_probes_are_forgiven() -> None:
    pages = Pages()
    replica = behind(pages)
    probes = prober(replica)
    await probes.probe()
    for _ in range(3):
        pages.silent = True
        await probes.probe()
        await probes.probe()
        pages.silent = False
        await probes.probe()
    assert replica.up


async def test_whoever_answers_is_not_asked_unless_it_is_suspect(
    replica: Replica, engine: FakeEngine
) -> None:
    asked = engine.requests
    probes = prober(replica)
    await probes.probe(trust_answers=True)
    replica.answered()
    await probes.probe(trust_answers=True)
    assert len(asked("/health")) == 1
    await probes.probe(trust_answers=True)
    assert len(asked("/health")) == 2, "an answer stands for one probe"
    replica.answered()
    await probes.probe(trust_answers=False)
    assert len(asked("/health")) == 3
    replica.answered()
    replica.fall("for a while")
    await probes.probe(trust_answers=True)
    assert len(asked("/health")) == 4, "it must come back by a probe of its own"


async def test_a_suspicion_is_looked_into_at_once(replica: Replica, engine: FakeEngine) -> None:
    watching = asyncio.create_task(prober(replica, interval_s=10).run())
    await until(lambda: replica.up)
    engine.stop()
    replica.suspected.set()
    await until(lambda: not replica.up, seconds=8)
    watching.cancel()


class Pages:
    """A connection whose engine answers with these pages."""

    url = "http://pages"

    def __init__(
        self, models: bytes = b'{"data":[{"id":"m"}]}', metrics: tuple[int, bytes] = (200, b"")
    ) -> None:
        self.pages = {"/health": (200, b""), "/v1/models": (200, models), "/metrics": metrics}

        self.silent = False

    async def fetch(self, path: str, *, timeout_s: float) -> tuple[int, bytes]:
        if self.silent:
            raise EngineTimeout(path)
        return self.pages[path]


def behind(pages: Pages) -> Replica:
    return Replica("r", create_engine("vllm", Address(cast(Connection, pages))))


@pytest.mark.parametrize("metrics", [(404, b""), (200, b'vllm:num_requests_running{engine="0"} NaN\n')])
async def test_a_load_that_cannot_be_read_is_no_reason_to_leave(metrics: tuple[int, bytes]) -> None:
    replica = behind(Pages(metrics=metrics))
    await prober(replica).probe()
    assert replica.up


@pytest.mark.parametrize(
    "models", [b"{}", b'{"data":[{"id":"m","parent":[1]}]}', b'{"data":' + b"[" * 5000 + b"]" * 5000 + b"}"]
)
async def test_odd_models_take_it_out_and_probing_goes_on(models: bytes) -> None:
    pages = Pages(models)
    replica = behind(pages)
    await prober(replica).probe()
    assert not replica.up
    pages.pages["/v1/models"] = Pages().pages["/v1/models"]
    await prober(replica).probe()
    assert replica.up


async def test_a_model_that_comes_later_is_told() -> None:
    pages = Pages()
    replica = behind(pages)
    await prober(replica).probe()
    told: list[Replica] = []
    replica.changed = told.append
    probes = prober(replica)
    pages.pages["/v1/models"] = (200, b'{"data":[{"id":"m"},{"id":"n"}]}')
    for _ in range(10):
        await probes.probe()
    assert told == [replica]


async def test_load_counts_what_others_sent(replica: Replica, engine: FakeEngine) -> None:
    await prober(replica).probe()
    charge = replica.charge()
    assert replica.load == 1
    engine.faults.hang_before_first_byte = True
    connection = replica.engine.connection
    body = b'{"model":"fake","prompt":"x"}'
    others = [asyncio.create_task(connection.send("POST", "/v1/completions", [], body)) for _ in range(3)]
    await until(lambda: len(engine.requests("/v1/completions")) == 3)
    replica.sample(await replica.engine.load(timeout_s=1))
    assert replica.load == max(1, engine.running + engine.waiting)
    for other in others:
        other.cancel()
    charge.release()
    charge.release()
    assert replica.requests == 0
