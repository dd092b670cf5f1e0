"""`Mooncake` under the contract, and what is its own; against a real master throughout."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cache.errors import FolderError, SettingsError
from cache.memory import allocate
from cache.stores import Limits, Settings
from cache.stores.mooncake import Mooncake
from cache.stores.mooncake.client import Code
from cache.testing import PAGE_BYTES, SPACE, StoreContract, content, key, page
from cache.tiers.base import Outcome, Read, Store, Write
from tests.cache.stores.mooncake.pool import Borrowed, Master, get, key_of, put


class TestMooncake(StoreContract):
    """Nothing lies in this process: all goes to another one and back, over TCP."""

    @pytest.fixture(autouse=True)
    def _master(self, master: Master) -> None:
        self.master = master

    def open(self, folder: Path) -> Store:
        return self.master.share(hashlib.sha256(bytes(folder)).hexdigest())

    def damage(self, store: Store, key: bytes, change: Callable[[bytearray], None]) -> None:
        assert isinstance(store, Mooncake)
        name = key_of(store, key)
        record = bytearray(store._client.get(name))
        change(record)
        assert store._client.remove(name, True) == 0
        if record:
            assert store._client.put(name, bytes(record)) == 0


@pytest.mark.slow
def test_a_url_opens_it_and_pages_outlive_who_stored_them(master: Master) -> None:
    store = master.open("outlive")
    first = store.store_id
    put(store, 0, 3)
    store.close()
    again = master.open("outlive")
    assert again.store_id == first
    assert [get(again, n) for n in range(4)] == [Outcome.DONE] * 3 + [Outcome.MISSING]
    again.close()


@pytest.mark.parametrize("page_bytes", [1, 4095, 1 << 20])
def test_pages_of_any_size(master: Master, page_bytes: int) -> None:
    store = master.share(f"size-{page_bytes}", Settings(page_bytes=page_bytes))
    data, into = content(3, page_bytes), allocate(page_bytes)
    assert store.write(SPACE, [Write(page(3), [data], 1)]) == [Outcome.DONE]
    assert store.read(SPACE, [Read(key(3), [into])]) == [Outcome.DONE]
    assert into == data


def test_more_pages_than_a_batch(master: Master) -> None:
    store = master.share("batches")
    count = 2 * store.batch + 7
    assert put(store, 0, count) == [Outcome.DONE] * count
    memory = allocate(count * PAGE_BYTES)
    parts = [memory[n * PAGE_BYTES : (n + 1) * PAGE_BYTES] for n in range(count)]
    reads = [Read(key(number), [part]) for number, part in enumerate(parts)]
    assert store.read(SPACE, reads) == [Outcome.DONE] * count
    assert all(part == content(number) for number, part in enumerate(parts))
    assert store.clear() == count


def test_others_follow_a_clear(master: Master) -> None:
    ours, theirs = master.share("follow"), master.share("follow")
    neighbour = master.share("follow-not")
    put(ours, 0, 5)
    put(neighbour, 0, 5)
    assert theirs.find(SPACE, [key(0)]) == [True]
    assert ours.clear() == 5
    theirs.tend()
    assert theirs.find(SPACE, [key(0)]) == [False]
    put(theirs, 5, 6)
    assert get(ours, 5) is Outcome.DONE
    assert [get(neighbour, n) for n in range(5)] == [Outcome.DONE] * 5


def test_a_page_written_during_a_clear_does_not_stay(master: Master) -> None:
    class Clearing(Borrowed):
        def batch_put_from_multi_buffers(self, *arguments: object) -> list[int]:
            codes: list[int] = self.client.batch_put_from_multi_buffers(*arguments)
            store.clear()
            return codes

    store = master.share("race", client=Clearing(master.share("race")._client.client))
    old = key_of(store, key(0))
    assert put(store, 0, 1) == [Outcome.DROPPED]
    assert store.find(SPACE, [key(0)]) == [False]
    assert store._client.is_exist(old) == 0


def test_a_batch_that_outlasts_the_lease_is_read_page_by_page(master: Master) -> None:
    class Slow(Borrowed):
        def batch_get_into_multi_buffers(self, keys: Sequence[str], *rest: Sequence[object]) -> list[int]:
            if len(keys) > 1:
                return [Code.LEASE_EXPIRED] * len(keys)
            return list(self.client.batch_get_into_multi_buffers(keys, *rest))

    store = master.share("lease", client=Slow(master.share("lease")._client.client))
    put(store, 0, 5)
    into = [allocate(PAGE_BYTES) for _ in range(5)]
    assert store.read(SPACE, [Read(key(n), [into[n]]) for n in range(5)]) == [Outcome.DONE] * 5
    assert into == [content(n) for n in range(5)]


@pytest.mark.parametrize("code", [Code.TRANSFER, Code.LEASE_EXPIRED, Code.OTHER_SIZE])
def test_a_failed_transfer_removes_nothing(master: Master, code: Code) -> None:
    class Broken(Borrowed):
        broken = True

        def batch_get_into_multi_buffers(self, keys: Sequence[str], *rest: Sequence[object]) -> list[int]:
            codes = self.client.batch_get_into_multi_buffers(keys, *rest)
            return [code] * len(keys) if self.broken else list(codes)

    client = Broken(master.share("transfer")._client.client)
    store = master.share("transfer", client=client)
    put(store, 0, 4)
    assert [get(store, n) for n in range(4)] == [Outcome.FAILED] * 4
    assert store.available, "the others' memory may still be there"
    client.broken = False
    assert [get(store, n) for n in range(4)] == [Outcome.DONE] * 4


def test_a_full_store_drops_what_is_offered(master: Master) -> None:
    class Full(Borrowed):
        def batch_put_from_multi_buffers(self, keys: Sequence[str], *rest: object) -> list[int]:
            return [Code.NO_ROOM] * len(keys)

    store = master.share("full", client=Full(master.share("full")._client.client))
    assert put(store, 0, 2) == [Outcome.FULL] * 2
    assert store.available
    assert store.usage().pages == 0


def test_limits_are_mooncakes_own(master: Master) -> None:
    with pytest.raises(SettingsError, match="evicts by itself"):
        master.share("limits", Settings(page_bytes=PAGE_BYTES, limits=Limits(cap=1 << 30)))


@pytest.mark.slow
def test_a_pool_without_memory_says_so(lone_master: Master) -> None:
    with pytest.raises(FolderError, match="let clients lend more memory"):
        lone_master.share("empty")


def test_a_closed_store_has_nothing_and_may_be_closed_again(master: Master) -> None:
    store = master.open("closed")
    assert put(store, 0, 1) == [Outcome.DONE]
    store.close()
    assert get(store, 0) is Outcome.FAILED
    assert put(store, 1, 2) == [Outcome.DROPPED]
    store.tend()
    with pytest.raises(FolderError, match="is closed"):
        store.clear()
    store.close()
