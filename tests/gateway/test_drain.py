import asyncio

import pytest

from gateway.drain import Drain
from gateway.errors import Overloaded
from gateway.settings import ShutdownSettings


async def test_an_empty_gateway_leaves_at_once() -> None:
    drain = Drain(ShutdownSettings(notice_s=0, grace_s=60))
    async with asyncio.timeout(20):
        assert await drain.run() == 0
    with pytest.raises(Overloaded), drain.request():
        pass


async def test_open_requests_are_waited_for() -> None:
    drain = Drain(ShutdownSettings(notice_s=0, grace_s=60))
    with drain.request():
        leaving = asyncio.create_task(drain.run())
        await asyncio.sleep(0.05)
        assert drain.draining
        assert not leaving.done()
    async with asyncio.timeout(20):
        assert await leaving == 0


async def test_the_grace_time_ends_the_wait() -> None:
    drain = Drain(ShutdownSettings(notice_s=0, grace_s=0.05))
    with drain.request():
        async with asyncio.timeout(20):
            assert await drain.run() == 1


async def test_requests_are_taken_during_the_notice() -> None:
    drain = Drain(ShutdownSettings(notice_s=0.2, grace_s=60))
    leaving = asyncio.create_task(drain.run())
    await asyncio.sleep(0)
    assert drain.draining
    with drain.request():
        pass
    assert await leaving == 0
