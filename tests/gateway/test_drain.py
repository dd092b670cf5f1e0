import asyncio

import pytest

from gateway.drain import Drain
from gateway.errors import Overloaded
from gateway.settings import ShutdownSettings


async def test_an_empty_gateway_leaves_at_once() -> None:
    drain = Drain(ShutdownSettings(notice_s=0, grace_s=60))
    async with asyncio.timeout(1):
        assert await drain.run() == 0
    with pytest.raises(Overloaded):
        drain.enter()


async def test_open_requests_are_waited_for() -> None:
    drain = Drain(ShutdownSettings(notice_s=0, grace_s=60))
    drain.enter()
    leaving = asyncio.create_task(drain.run())
    await asyncio.sleep(0.05)
    assert drain.draining
    assert not leaving.done()
    drain.leave()
    async with asyncio.timeout(1):
        assert await leaving == 0


async def test_the_grace_time_ends_the_wait() -> None:
    drain = Drain(ShutdownSettings(notice_s=0, grace_s=0.05))
    drain.enter()
    async with asyncio.timeout(1):
        assert await drain.run() == 1


async def test_requests_are_taken_during_the_notice() -> None:
    drain = Drain(ShutdownSettings(notice_s=0.2, grace_s=60))
    leaving = asyncio.create_task(drain.run())
    await asyncio.sleep(0)
    assert drain.draining
    drain.enter()
    drain.leave()
    assert await leaving == 0
