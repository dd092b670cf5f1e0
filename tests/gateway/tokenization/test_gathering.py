import asyncio
import threading

import pytest

from gateway.tokenization import EncodePool, Overloaded
from gateway.tokenization.errors import NotEncodable
from gateway.tokenization.gathering import GATHERED_S, Gathering
from gateway.tokenization.results import token_ids

SHORT = GATHERED_S / 4


class Encoding:
    """Encodes a text as its length; waits with each call until it may go."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.go = threading.Event()

    def __call__(self, texts):
        self.calls.append(texts)
        assert self.go.wait(10)
        if "\ud800" in texts:
            raise NotEncodable("UnicodeEncodeError")
        return {text: token_ids([len(text)]) for text in texts}


@pytest.fixture
def encoding() -> Encoding:
    return Encoding()


@pytest.fixture
def remembered() -> dict:
    return {}


@pytest.fixture
def gathering(pool: EncodePool, encoding: Encoding, remembered: dict) -> Gathering:
    return Gathering(pool, encoding, remembered.update)


async def test_what_comes_while_the_threads_work_is_encoded_by_one_call(
    pool, gathering, encoding, remembered
):
    jobs = [gathering.submit([text], SHORT) for text in ("a", "bb", "ccc", "dddd")]
    encoding.go.set()
    found = await asyncio.gather(*jobs)
    assert [sorted(each) for each in found] == [["a"], ["bb"], ["ccc", "dddd"], ["ccc", "dddd"]]
    assert sorted(encoding.calls) == [["a"], ["bb"], ["ccc", "dddd"]]
    assert sorted(remembered) == ["a", "bb", "ccc", "dddd"]
    assert pool.wait_s == pytest.approx(0)


async def test_nobody_waits_for_much_of_others_text(gathering, encoding):
    jobs = [gathering.submit([text], SHORT) for text in "ab"]
    jobs += [gathering.submit([text], 2 * SHORT) for text in "cdef"]
    jobs.append(gathering.submit(["long"], 2 * GATHERED_S))
    encoding.go.set()
    await asyncio.gather(*jobs)
    assert sorted(encoding.calls) == [["a"], ["b"], ["c", "d", "e"], ["f"], ["long"]]


async def test_a_text_that_cannot_be_encoded_is_left_out(gathering, encoding):
    encoding.go.set()
    found = await gathering.submit(["good", "\ud800"], SHORT)
    assert sorted(found) == ["good"]


async def test_a_text_on_which_the_tokenizer_fails_costs_nobody_else_theirs(pool, encoding):
    def fail_on_boom(texts):
        if "boom" in texts:
            raise NotEncodable("ZeroDivisionError")
        return encoding(texts)

    gathering = Gathering(pool, fail_on_boom, lambda encoded: None)
    jobs = [gathering.submit([text], SHORT) for text in ("a", "b", "c", "boom", "d")]
    encoding.go.set()
    found = await asyncio.gather(*jobs)
    assert [sorted(each) for each in found] == [["a"], ["b"], *[["c", "d"]] * 3]
    assert pool.wait_s == pytest.approx(0)


async def test_gathered_work_counts_as_work_ahead(encoding):
    pool = EncodePool(workers=1, max_wait_s=2 * SHORT)
    gathering = Gathering(pool, encoding, lambda encoded: None)
    jobs = [gathering.submit([text], SHORT) for text in "abc"]
    with pytest.raises(Overloaded):
        gathering.submit(["d"], SHORT)
    encoding.go.set()
    await asyncio.gather(*jobs)
    assert pool.wait_s == pytest.approx(0)
    pool.close()


async def test_what_waits_when_the_pool_closes_is_dropped_and_not_left_waiting(encoding):
    pool = EncodePool(workers=1, max_wait_s=5.0)
    gathering = Gathering(pool, encoding, lambda encoded: None)
    running, waiting = (gathering.submit([text], SHORT) for text in "ab")
    pool.close()
    encoding.go.set()
    async with asyncio.timeout(10):
        assert list(await running) == ["a"]
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert pool.wait_s == pytest.approx(0)
