import asyncio
from typing import cast

import pytest

from engine_adapters.base import Engine, Load
from gateway.fleet import Replica


@pytest.fixture
def replica() -> Replica:
    replica = Replica("r", cast(Engine, None))
    replica.rise([])
    return replica


def test_a_charge_is_given_back_once(replica: Replica) -> None:
    first, second = replica.charge(100), replica.charge(50)
    assert (replica.requests, replica.prefill_tokens) == (2, 150)
    first.prefilled()
    assert (replica.requests, replica.prefill_tokens) == (2, 50)
    for _ in range(2):
        first.release()
        second.release()
    assert (replica.requests, replica.prefill_tokens) == (0, 0)


def test_load_adds_only_what_we_did_not_send(replica: Replica) -> None:
    charges = [replica.charge() for _ in range(3)]
    replica.sample(Load(running=4, waiting=1, kv_usage=0.5))
    assert replica.load == 5
    for charge in charges:
        charge.release()
    assert replica.load == 2
    replica.sample(Load(running=0, waiting=0, kv_usage=0))
    assert replica.load == 0


async def test_patience_ends_with_the_replica(replica: Replica) -> None:
    async def wait() -> str:
        try:
            async with replica.patience(60):
                await asyncio.sleep(60)
        except TimeoutError:
            return "moved"
        return "waited"

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    replica.fall("gone")
    async with asyncio.timeout(20):
        assert await asyncio.gather(*waiting) == ["moved"] * 3


async def test_patience_has_its_own_limit_too(replica: Replica) -> None:
    with pytest.raises(TimeoutError):
        async with replica.patience(0.01):
            await asyncio.sleep(60)
    async with replica.patience(60):
        pass
    replica.fall("later")
