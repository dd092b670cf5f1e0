import asyncio
import threading

import pytest

from gateway.tokenization import EncodePool, Overloaded


async def test_runs_work_on_another_thread(pool: EncodePool):
    assert await pool.submit(0.1, threading.get_ident) != threading.get_ident()


async def test_counts_the_work_ahead_until_it_is_done(pool: EncodePool):
    go = threading.Event()
    jobs = [pool.submit(2.0, go.wait, 10) for _ in range(3)]
    assert pool.wait_s == pytest.approx(3.0)  # 6 s of work for 2 threads
    go.set()
    await asyncio.gather(*jobs)
    await asyncio.sleep(0)
    assert pool.wait_s == 0


async def test_refuses_what_would_wait_too_long(pool: EncodePool):
    go = threading.Event()
    jobs = [pool.submit(11.0, go.wait, 10)]
    with pytest.raises(Overloaded) as refused:
        pool.submit(0.1, go.wait, 10)
    assert refused.value.retry_after_s == pytest.approx(5.5)
    assert pool.refused == 1
    go.set()
    await asyncio.gather(*jobs)
    await asyncio.sleep(0)
    await pool.submit(100.0, go.wait, 10)  # an idle pool takes anything


async def test_work_that_fails_counts_no_longer(pool: EncodePool):
    with pytest.raises(ZeroDivisionError):
        await pool.submit(1.0, divmod, 1, 0)
    await asyncio.sleep(0)
    assert pool.wait_s == 0
