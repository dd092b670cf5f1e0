"""What happens when masters and other clients go, hang and come back."""

import itertools
import threading
import time

import pytest

from cache import state
from cache.hierarchy import Hierarchy
from cache.memory import allocate
from cache.stores import Settings
from cache.stores.mooncake import Mooncake, client
from cache.stores.root import NAME
from cache.testing import PAGE_BYTES, SPACE, content, key, page
from cache.tiers.base import Outcome, Tier
from cache.tiers.host import Host
from tests.cache.stores.mooncake.pool import Master, get, put
from tests.waiting import until

pytestmark = pytest.mark.slow

IMPATIENT = Settings(page_bytes=PAGE_BYTES, look_seconds=0.3, io_seconds=1.0)


def tended(store: Mooncake) -> bool:
    store.tend()
    return store.available


def test_a_master_that_restarts_has_forgotten_and_takes_pages_again(lone_master: Master) -> None:
    store = lone_master.open("restart", "64MiB", IMPATIENT)
    first = store.store_id
    put(store, 0, 5)
    lone_master.kill()
    assert get(store, 0) is Outcome.FAILED
    assert not store.available
    begin = time.monotonic()
    assert store.find(SPACE, [key(0)]) == [False]
    assert put(store, 9, 10) == [Outcome.DROPPED]
    assert time.monotonic() - begin < 3 * IMPATIENT.look_seconds
    lone_master.start()
    until(lambda: tended(store) and put(store, 0, 5) == [Outcome.DONE] * 5)
    assert [get(store, n) for n in range(6)] == [Outcome.DONE] * 5 + [Outcome.MISSING]
    assert store.store_id == first
    until(lambda: tended(store) and store._mooncake.has(NAME))
    assert lone_master.share("restart").store_id == first
    store.close()


def test_what_a_restarted_master_forgot_is_a_miss(lone_master: Master) -> None:
    store = lone_master.open("forgot", "64MiB", IMPATIENT)
    put(store, 0, 5)
    lone_master.kill()
    lone_master.start()
    until(lambda: tended(store) and put(store, 7, 8) == [Outcome.DONE])
    assert [get(store, n) for n in range(5)] == [Outcome.MISSING] * 5
    assert store.find(SPACE, [key(0)]) == [False]
    store.close()


def test_a_master_that_hangs_holds_nobody_up(lone_master: Master) -> None:
    store = lone_master.open("hang", "64MiB", IMPATIENT)
    put(store, 0, 3)
    lone_master.hang()
    begin = time.monotonic()
    assert store.find(SPACE, [key(7)]) == [False]
    assert time.monotonic() - begin < 3 * IMPATIENT.look_seconds
    stuck = threading.Thread(target=get, args=(store, 0), daemon=True)
    stuck.start()
    until(lambda: not store.available)
    begin = time.monotonic()
    assert get(store, 1) is Outcome.FAILED
    assert put(store, 4, 5) == [Outcome.DROPPED]
    assert store.find(SPACE, [key(1)]) == [False]
    assert time.monotonic() - begin < 0.5
    lone_master.go_on()
    stuck.join(60)
    until(lambda: tended(store) and get(store, 1) is Outcome.DONE)
    store.close()


def test_a_store_whose_master_hangs_closes(lone_master: Master) -> None:
    store = lone_master.open("close", "64MiB", IMPATIENT)
    lone_master.hang()
    begin = time.monotonic()
    store.close()
    assert time.monotonic() - begin < 3 * client.ANSWER_SECONDS
    lone_master.go_on()
    store.close()


def test_a_hierarchy_over_a_master_that_hangs(lone_master: Master) -> None:
    store = lone_master.open("below", "64MiB", IMPATIENT)
    host = Host(allocate(16 * PAGE_BYTES), PAGE_BYTES)
    settings = state.Settings(page_tokens=16, page_bytes=PAGE_BYTES, threshold=16, look_seconds=0.1)
    tiers = Hierarchy(settings, host, [state.Level(store)])
    keys = [key(n) for n in range(8)]
    assert tiers.store(SPACE, [page(n) for n in range(8)], [[content(n)] for n in range(8)]) == 8
    assert tiers.drain(60)
    tiers.clear(Tier.HOST)
    plan = tiers.plan(tiers.match(SPACE, keys, 30))
    assert plan.pages == 8
    lone_master.hang()
    begin = time.monotonic()
    ticket = tiers.load(plan, [page(n) for n in range(8)], seconds=0.3)
    assert ticket.wait(30).ready == 0
    assert tiers.match(SPACE, [key(n) for n in range(100, 110)]).spans == ()
    assert tiers.store(SPACE, [page(20)], [[content(20)]]) == 1
    assert time.monotonic() - begin < 3 * (0.3 + 0.1)
    ticket.release()
    lone_master.go_on()

    def loaded() -> bool:
        plan = tiers.plan(tiers.match(SPACE, keys, 5))
        ticket = tiers.load(plan, [page(n) for n in range(plan.pages)])
        ready = ticket.wait(30).ready
        ticket.release()
        return ready == 8

    until(loaded)
    tiers.close()


def test_leased_pages_stay_and_others_make_room(lone_master: Master) -> None:
    """The master evicts nothing that was read within its lease, here of 2 s; later, what was read first."""
    size = 1 << 20
    store = lone_master.open("lease", "16MiB", Settings(page_bytes=size))
    assert put(store, 0, 4, size) == [Outcome.DONE] * 4
    written = 0
    for number in range(100, 160):
        assert [get(store, n, size) for n in range(4)] == [Outcome.DONE] * 4
        written += put(store, number, number + 1, size) == [Outcome.DONE]
    assert written >= 8
    numbers = itertools.count(1000)
    evicting = (put(store, n, n + 1, size) == [Outcome.DONE] for n in numbers)
    written = 0

    def written_over() -> bool:
        nonlocal written
        written += next(evicting)
        return written > 64

    until(written_over)
    assert Outcome.DONE not in [get(store, n, size) for n in range(4)]
    assert lone_master.share("lease").store_id == store.store_id, "the root was evicted"
    store.close()


def test_two_write_a_third_reads_and_the_first_is_killed(lone_master: Master) -> None:
    lone_master.spawn("lender", "256MiB")
    writers = [lone_master.spawn("three") for _ in range(2)]
    assert [writer.ask("stream") for writer in writers] == ["going"] * 2
    store = lone_master.share("three")
    seen: list[Outcome] = []
    number = 0

    def read_on(count: int) -> None:
        """Follow the writers, always at the page that they are writing.

        The page that the first was at when it was killed is nobody's until the master gives it up.
        """
        nonlocal number
        limit = time.monotonic() + 60
        while seen.count(Outcome.DONE) < count:
            assert time.monotonic() < limit
            seen.append(get(store, number))
            if seen[-1] is Outcome.DONE or get(store, number + 1) is Outcome.DONE:
                number += 1

    read_on(60)
    writers[0].kill()
    read_on(200)
    writers[1].kill()
    assert set(seen) <= {Outcome.DONE, Outcome.MISSING}


def test_pages_of_a_client_that_was_killed_are_misses_and_can_be_stored_again(lone_master: Master) -> None:
    dying = lone_master.spawn("dying", "64MiB")
    assert [dying.ask(f"write {n}") for n in range(4)] == ["done"] * 4
    store = lone_master.open("dying", "64MiB")
    first = store.store_id
    assert [get(store, n) for n in range(4)] == [Outcome.DONE] * 4
    put(store, 10, 40)
    dying.kill()
    assert [get(store, n) for n in range(10, 40)] == [Outcome.DONE] * 30, "they lie in our own segment"
    assert {get(store, n) for n in range(4)} <= {Outcome.FAILED, Outcome.MISSING}
    assert store.available
    until(lambda: tended(store) and put(store, 0, 4) == [Outcome.DONE] * 4 and get(store, 3) is Outcome.DONE)
    assert [get(store, n) for n in range(4)] == [Outcome.DONE] * 4
    until(
        lambda: tended(store) and store._mooncake.has(NAME)
    )  # it lay in the memory of the one that was killed
    assert lone_master.share("dying").store_id == store.store_id == first
    store.close()
