"""One collector at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cache.stores import lease
from cache.stores.lease import LEASE_SECONDS, Lease, Survey, last_survey
from tests.cache.stores.memory import Memory


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    return Memory()


def test_one_has_it_until_it_is_done(shelf: Memory) -> None:
    first, second = Lease(shelf), Lease(shelf)
    assert first.take(0)
    assert not second.take(0)
    first.finish(Survey(3, 300))
    assert last_survey(shelf) == (1, Survey(3, 300))
    assert not second.take(60)  # not yet due
    shelf.time += 60
    assert second.take(60)
    assert last_survey(shelf) == (1, Survey(3, 300))
    assert not first.take(0)


def test_a_killed_collector_is_succeeded(shelf: Memory) -> None:
    killed, next_one = Lease(shelf), Lease(shelf)
    assert killed.take(0)
    shelf.time += LEASE_SECONDS - 1
    assert not next_one.take(0)
    shelf.time += 1
    assert next_one.take(0)


def test_a_living_one_is_not(shelf: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(lease.time, "monotonic", lambda: now)
    first, second = Lease(shelf), Lease(shelf)
    assert first.take(0)
    for _ in range(10):
        shelf.time += LEASE_SECONDS / 2
        now += LEASE_SECONDS / 2
        assert first.renew()
        assert not second.take(0)


def test_who_was_taken_for_dead_notices_at_the_next_renewal(
    shelf: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(lease.time, "monotonic", lambda: now)
    slow, second = Lease(shelf), Lease(shelf)
    assert slow.take(0)
    shelf.time += LEASE_SECONDS
    now += LEASE_SECONDS
    assert second.take(0)
    assert not slow.renew()
    slow.finish(Survey(9, 9))
    assert last_survey(shelf) == (0, Survey())


def test_of_many_at_once_one_gets_it(shelf: Memory) -> None:
    leases, together = [Lease(shelf) for _ in range(8)], threading.Barrier(8)

    def take(one: Lease) -> bool:
        together.wait(30)
        return one.take(0)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, leases)) == 1


def test_what_cannot_be_read_is_nobodys(shelf: Memory) -> None:
    shelf.put(lease.NAME, b"\xff", "")
    assert last_survey(shelf) == (0, Survey())
    assert Lease(shelf).take(0)


def test_a_clock_that_was_wrong_keeps_nobody_from_it(shelf: Memory) -> None:
    ahead = Lease(shelf)
    shelf.time += 86400
    assert ahead.take(0)
    shelf.time -= 86400
    assert Lease(shelf).take(0)


def test_two_that_count_the_same_are_two(shelf: Memory) -> None:
    for number in (1, 2):
        one = Lease(shelf)
        assert one.take(0)
        one.finish(Survey(3, 300))
        assert last_survey(shelf) == (number, Survey(3, 300))
