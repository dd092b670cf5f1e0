import logging
import threading
import time
from collections.abc import Sequence

import pytest

from cache.errors import SettingsError
from cache.keys import Namespace
from cache.testing import BASE, SPACE, key, page
from cache.tiers.base import Outcome, Read, Store, Tier, Usage, Write
from cache.tiers.lane import Job, Lane, Result, Width


class Gate(Store):
    """A store that waits for its gate, and notes what it was asked."""

    tier = Tier.SHARED
    remote = True
    batch = 3

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[list[bytes]] = []
        self.raises = False

    def find(self, namespace: Namespace, keys: Sequence[bytes]) -> list[bool]:
        self.open.wait()
        if self.raises:
            raise RuntimeError("a bug")
        return [True] * len(keys)

    def read(self, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:
        self.open.wait()
        self.asked.append([read.key for read in reads])
        if self.raises:
            raise RuntimeError("a bug")
        return [Outcome.DONE] * len(reads)

    def write(self, namespace: Namespace, writes: Sequence[Write]) -> list[Outcome]:
        self.open.wait()
        return [Outcome.DONE] * len(writes)

    def clear(self, tenant: int | None = None) -> int:
        return 0

    def usage(self) -> Usage:
        return Usage(0, 0, 0)


def job(number: int, results: list[Result], space: Namespace = SPACE, wanted: bool = True) -> Job:
    return Job(space, Read(key(number), []), lambda: wanted, results.append)


def settle(lane: Lane) -> None:
    limit = time.monotonic() + 5
    while not lane.idle and time.monotonic() < limit:
        time.sleep(0.001)
    assert lane.idle


def test_batches_are_of_one_namespace_and_unwanted_jobs_are_forgotten() -> None:
    store, results = Gate(), list[Result]()
    lane = Lane(store, Width(readers=1))
    other = BASE.namespace(lora="x")
    lane.load([job(0, results)])
    time.sleep(0.05)
    lane.load([job(1, results), job(2, results, wanted=False), job(3, results), job(4, results, other)])
    assert lane.backlog == 5
    store.open.set()
    settle(lane)
    assert store.asked == [[key(0)], [key(1), key(3)], [key(4)]]
    assert len(results) == 4
    assert lane.close(5)


def test_urgent_reads_go_first() -> None:
    store, results = Gate(), list[Result]()
    lane = Lane(store, Width(readers=1))
    lane.load([job(0, results)])
    time.sleep(0.05)
    lane.load([job(1, results)], urgent=False)
    lane.load([job(2, results)])
    store.open.set()
    settle(lane)
    assert store.asked == [[key(0)], [key(2)], [key(1)]]
    assert lane.close(5)


def test_too_many_waiting_writes_are_refused() -> None:
    store, results = Gate(), list[Result]()
    lane = Lane(store, Width(writers=1, waiting_writes=2))
    write = Job(SPACE, Write(page(1), []), lambda: True, results.append)
    assert [lane.save(write) for _ in range(3)] == [True, True, False]
    store.open.set()
    settle(lane)
    assert [result.outcome for result in results] == [Outcome.DONE] * 2
    assert lane.close(5)


def test_look_ups_are_answered_on_their_own_thread_and_bounded() -> None:
    store, answers = Gate(), list[Sequence[bool]]()
    lane = Lane(store)
    taken = [lane.look(SPACE, [key(1)], answers.append) for _ in range(20)]
    assert 2 <= sum(taken) < 20
    time.sleep(0.05)
    store.open.set()
    assert lane.close(5)
    assert answers


def test_a_store_that_raises_is_logged_and_the_pages_fail(caplog: pytest.LogCaptureFixture) -> None:
    store, results = Gate(), list[Result]()
    store.raises = True
    store.open.set()
    lane = Lane(store)
    with caplog.at_level(logging.ERROR):
        lane.load([job(1, results)])
        settle(lane)
    assert [result.outcome for result in results] == [Outcome.FAILED]
    assert "a bug" in caplog.text
    lane.load([job(2, results)])
    settle(lane)
    assert len(results) == 2
    assert lane.close(5)


def test_upkeep_goes_on_after_one_that_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cache.tiers.lane._TEND_SECONDS", 0.001)
    store, again, calls = Gate(), threading.Event(), list[int]()

    def tend() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a bug in upkeep")
        again.set()

    monkeypatch.setattr(store, "tend", tend)
    lane = Lane(store)
    assert again.wait(20)
    assert "a bug in upkeep" in caplog.text
    assert lane.close(5)


def test_closing_does_not_wait_for_a_store_that_hangs() -> None:
    store, results = Gate(), list[Result]()
    lane = Lane(store, Width(readers=1))
    lane.load([job(0, results), job(1, results)])
    time.sleep(0.05)
    begin = time.monotonic()
    assert not lane.close(0.1)
    assert time.monotonic() - begin < 1
    store.open.set()


def test_widths_must_be_positive() -> None:
    with pytest.raises(SettingsError, match="at least one"):
        Width(readers=0)
