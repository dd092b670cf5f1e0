"""`Posix` on a real mount that is slow, hangs, fails or goes away."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cache.hierarchy import Hierarchy
from cache.memory import allocate
from cache.plan import Match
from cache.state import Level
from cache.state import Settings as HierarchySettings
from cache.stores import Settings
from cache.stores.posix import Posix
from cache.testing import PAGE_BYTES, SPACE, StoreContract, content, key, page, pages
from cache.tiers.base import Outcome, Read, Store, Tier, Write
from cache.tiers.host import Host
from tests.cache.build import SLOW_PREFILL
from tests.cache.stores.posix.mount import Mount
from tests.cache.stores.posix.test_store import make, path_of
from tests.waiting import until

LIMIT = 0.6
PATIENT = 30.0


@pytest.mark.slow
class TestOnAMount(StoreContract):
    @pytest.fixture
    def folder(self, mount: Mount, request: pytest.FixtureRequest) -> Path:
        return mount.path / request.node.name

    def open(self, folder: Path) -> Store:
        return make(folder)

    def damage(self, store: Store, key: bytes, change: Callable[[bytearray], None]) -> None:
        path = path_of(store, key)
        record = bytearray(path.read_bytes())
        change(record)
        path.write_bytes(record)


@pytest.fixture
def store(mount: Mount, request: pytest.FixtureRequest) -> Iterator[Posix]:
    settings = Settings(page_bytes=PAGE_BYTES, look_seconds=LIMIT, io_seconds=LIMIT, streams=2)
    store = Posix(mount.path / request.node.name, settings)
    assert put(store, 0, 40) == {Outcome.DONE}
    yield store
    store.close()


def put(store: Store, start: int, stop: int) -> set[Outcome]:
    return {store.write(SPACE, [Write(page(n), [content(n)], 1)])[0] for n in range(start, stop)}


def get(store: Store, number: int) -> Outcome:
    into = allocate(PAGE_BYTES)
    (outcome,) = store.read(SPACE, [Read(key(number), [into])])
    assert outcome is not Outcome.DONE or into == content(number)
    return outcome


def find(store: Store, start: int, stop: int) -> int:
    return sum(store.find(SPACE, [key(n) for n in range(start, stop)]))


def test_a_hanging_mount_holds_up_two_threads_and_nobody_else(store: Posix, mount: Mount) -> None:
    mount.tell("hang")
    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(get, store, number) for number in range(6)]
        until(lambda: sum(reader.done() for reader in readers) == 4)
        assert not store.usage().available
        assert {reader.result() for reader in readers if reader.done()} == {Outcome.FAILED}
        begin = time.monotonic()
        assert get(store, 7) is Outcome.FAILED
        assert put(store, 50, 51) == {Outcome.DROPPED}
        assert find(store, 0, 40) == 0
        assert time.monotonic() - begin < 3 * LIMIT
        mount.tell("go")
        assert {reader.result() for reader in readers} == {Outcome.FAILED, Outcome.DONE}
    store.tend()
    assert store.available
    assert get(store, 7) is Outcome.DONE
    assert find(store, 0, 40) == 40


@pytest.mark.slow
def test_upkeep_notices_a_hang_before_anybody_reads(store: Posix, mount: Mount) -> None:
    mount.tell("hang")
    upkeep = threading.Thread(target=store.tend)
    upkeep.start()
    until(lambda: not store.available)
    assert get(store, 0) is Outcome.FAILED
    mount.tell("go")
    upkeep.join(PATIENT)
    until(lambda: store.available)
    assert get(store, 0) is Outcome.DONE


@pytest.mark.slow
def test_a_look_up_keeps_its_deadline_on_a_slow_mount(store: Posix, mount: Mount) -> None:
    time.sleep(1.1)  # what the kernel remembers of the mount is over
    mount.tell("delay 1")
    begin = time.monotonic()
    assert find(store, 100, 200) == 0
    assert time.monotonic() - begin < 3 * LIMIT


@pytest.mark.slow
def test_memory_answers_while_the_mount_is_slow(store: Posix, mount: Mount) -> None:
    assert find(store, 0, 60) == 40
    mount.tell("delay 0.1")
    begin = time.monotonic()
    assert [find(store, 0, 60) for _ in range(20)] == [40] * 20
    assert time.monotonic() - begin < 3 * LIMIT


@pytest.mark.slow
def test_a_failing_mount_is_left_alone_and_tried_again(store: Posix, mount: Mount) -> None:
    mount.tell(f"fail {errno.EIO}")
    time.sleep(1.1)
    assert {get(store, number) for number in range(10)} == {Outcome.FAILED}
    assert not store.usage().available
    mount.tell("fail 0")
    until(lambda: store.tend() is None and store.available)
    assert get(store, 0) is Outcome.DONE


def test_a_full_mount_drops_pages(store: Posix, mount: Mount) -> None:
    mount.tell(f"fail {errno.ENOSPC}")
    assert put(store, 50, 60) == {Outcome.FULL}
    mount.tell("fail 0")
    assert store.available
    assert put(store, 50, 60) == {Outcome.DONE}


def test_the_hierarchy_goes_on_while_the_mount_hangs(store: Posix, mount: Mount) -> None:
    settings = HierarchySettings(
        page_tokens=16, page_bytes=PAGE_BYTES, threshold=16, priors=SLOW_PREFILL, look_seconds=LIMIT
    )
    tiers = Hierarchy(settings, Host(allocate(64 * PAGE_BYTES), PAGE_BYTES), [Level(store)])

    def match() -> Match:
        return tiers.match(SPACE, [key(number) for number in range(40)])

    plan = tiers.plan(match())
    assert plan.pages == 40
    mount.tell("hang")
    ticket = tiers.load(plan, pages(0, 40), seconds=LIMIT)
    assert ticket.wait(PATIENT).ready == 0
    until(lambda: not store.available)
    begin = time.monotonic()
    assert match().spans == ()
    assert time.monotonic() - begin < 3 * LIMIT
    assert tiers.store(SPACE, pages(100, 110), [[content(n)] for n in range(100, 110)]) == 10
    ticket.release()
    mount.tell("go")
    until(lambda: store.available and tiers.match(SPACE, [key(0)]).spans != ())
    assert tiers.drain(PATIENT)
    again = tiers.plan(match())
    assert again.pages == 40
    assert tiers.load(again, pages(0, 40)).wait(PATIENT).ready == 40
    assert {span.tier for span in match().spans} == {Tier.HOST}
    tiers.close()


@pytest.mark.slow
def test_nothing_is_written_to_an_empty_mount_point(store: Posix, mount: Mount) -> None:
    folder = mount.path / "elsewhere"
    Path(store.shelf.where).rename(folder)
    Path(store.shelf.where).mkdir()
    assert put(store, 60, 62) == {Outcome.FAILED}
    assert list(Path(store.shelf.where).iterdir()) == []
    store.tend()
    assert not store.usage().available
    Path(store.shelf.where).rmdir()
    folder.rename(store.shelf.where)
    until(lambda: store.tend() is None and store.available)
    assert get(store, 0) is Outcome.DONE


@pytest.mark.slow
def test_collecting_on_a_slow_mount_keeps_nobody_out(mount: Mount) -> None:
    settings = Settings(page_bytes=PAGE_BYTES, io_seconds=3.0)
    store = Posix(mount.path / "collected", settings)
    assert put(store, 0, 180) == {Outcome.DONE}
    time.sleep(1.1)
    mount.tell("delay 0.008")  # all of it takes much longer than a call may
    begin, out = time.monotonic(), 0
    upkeep = threading.Thread(
        target=lambda: until(lambda: store.tend() is None and store._upkeep.surveys == 1)
    )
    upkeep.start()
    while upkeep.is_alive():
        out += not store.available
        time.sleep(0.01)
    assert store.usage().pages == 180
    assert time.monotonic() - begin > settings.io_seconds
    assert out == 0
    store.close()
