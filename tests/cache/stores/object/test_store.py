"""`Object` under the contract: on a checking S3 server, and on a local folder."""

from collections.abc import Callable
from pathlib import Path

import obstore
import pytest

from cache.memory import allocate
from cache.stores import Limits, Settings, open_store
from cache.stores.names import name_of
from cache.stores.object import Object
from cache.testing import PAGE_BYTES, SPACE, StoreContract, content, key, page
from cache.tiers.base import Outcome, Read, Store, Write
from tests.cache.stores.object.conftest import S3


def make(url: str, io_seconds: float = 5.0, cap: int = 0) -> Object:
    store = open_store(url, Settings(page_bytes=PAGE_BYTES, io_seconds=io_seconds, limits=Limits(cap=cap)))
    assert isinstance(store, Object)
    return store


def name(store: Object, page_key: bytes) -> str:
    return name_of(store._root.generation, SPACE, page_key)


def put(store: Store, start: int, stop: int, tenant: int = 0) -> list[Outcome]:
    return list(store.write(SPACE, [Write(page(n, tenant), [content(n)], 1) for n in range(start, stop)]))


def get(store: Store, number: int) -> Outcome:
    into = allocate(PAGE_BYTES)
    (outcome,) = store.read(SPACE, [Read(key(number), [into])])
    assert outcome is not Outcome.DONE or into == content(number)
    return outcome


class Contract(StoreContract):
    def url(self, folder: Path) -> str:
        raise NotImplementedError

    def open(self, folder: Path) -> Store:
        return make(self.url(folder))

    def damage(self, store: Store, key: bytes, change: Callable[[bytearray], None]) -> None:
        assert isinstance(store, Object)
        record = bytearray(obstore.get(store._client, name(store, key)).bytes())
        change(record)
        obstore.put(store._client, name(store, key), bytes(record))


class TestLocal(Contract):
    def url(self, folder: Path) -> str:
        return f"file://{folder}"


@pytest.mark.slow
class TestS3(Contract):
    @pytest.fixture(autouse=True)
    def _server(self, s3: S3, prefix: str) -> None:
        self.s3, self.prefix = s3, prefix

    def url(self, folder: Path) -> str:
        return self.s3.url(self.prefix)


def test_engines_share_a_store_and_follow_a_clear(s3: S3, prefix: str) -> None:
    ours, theirs = make(s3.url(prefix)), make(s3.url(prefix))
    assert ours.store_id == theirs.store_id
    assert make(s3.url(prefix + "/other")).store_id != ours.store_id
    put(ours, 0, 3)
    assert [get(theirs, n) for n in range(3)] == [Outcome.DONE] * 3
    assert ours.clear() == 3
    theirs.tend()
    assert theirs.find(SPACE, [key(0)]) == [False]
    assert get(theirs, 0) is Outcome.MISSING


def test_its_cap_is_held(s3: S3, prefix: str) -> None:
    store = make(s3.url(prefix), cap=10 * (4096 + PAGE_BYTES))
    put(store, 0, 30)
    store.tend()
    assert (store.usage().pages, store.usage().evictions) == (10, 20)
    assert sum(get(store, n) is Outcome.DONE for n in range(30)) == 10


@pytest.mark.slow
def test_a_listing_of_many_pages(s3: S3, prefix: str) -> None:
    store = make(s3.url(prefix))
    for number in range(1100):
        obstore.put(store._client, name_of(1, SPACE, key(number)), b"")
    put(store, 0, 1)
    assert len(list(store.shelf.entries())) == 1102
    assert store.clear() == 1
    assert [entry.name for entry in store.shelf.entries()] == ["hpkv.json"]
