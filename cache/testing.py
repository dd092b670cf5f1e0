"""The contract suite that every store's tests subclass, and what tests of tiers share.

class TestMyStore(StoreContract):
    def open(self, folder: Path) -> Store: ...
    def damage(self, store: Store, key: bytes, change: Callable[[bytearray], None]) -> None: ...
"""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cache.keys import Base, Namespace, Page
from cache.memory import allocate
from cache.record import HEADER_BYTES
from cache.tiers.base import Change, Outcome, Read, Store, Write

PAGE_BYTES = 8192
BASE = Base(
    weights="0123abcd",
    kv_dtype="bfloat16",
    kv_layout="test",
    attention_backend="test",
    page_tokens=16,
    engine="test",
)
SPACE = BASE.namespace()


def key(number: int) -> bytes:
    """The key of page `number`."""
    return hashlib.sha256(f"page {number}".encode()).digest()


def page(number: int, tenant: int = 0) -> Page:
    """Page `number` of one long prompt."""
    return Page(key(number), number + 1, 16 * (number + 1), tenant)


def pages(start: int, stop: int, tenant: int = 0) -> list[Page]:
    """Neighbouring pages."""
    return [page(number, tenant) for number in range(start, stop)]


def content(number: int, size: int = PAGE_BYTES) -> memoryview:
    """The bytes of page `number`: aligned, and different in every block."""
    seed = hashlib.sha256(f"content {number}".encode()).digest()
    view = allocate(size)
    view[:] = hashlib.shake_128(seed).digest(size)
    return view


class StoreContract(ABC):
    """What every store must do. Subclass it in a test module, under a name that starts with `Test`."""

    @abstractmethod
    def open(self, folder: Path) -> Store:
        """A store of `PAGE_BYTES` pages of `BASE` in `folder`, with room for at least 64 of them."""

    @abstractmethod
    def damage(self, store: Store, key: bytes, change: Callable[[bytearray], None]) -> None:
        """Replace the record that the store holds of a page of `SPACE` by what `change` makes of it."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """Where the store lies."""
        return tmp_path / "store"

    @pytest.fixture
    def store(self, folder: Path) -> Iterator[Store]:
        """An empty store."""
        store = self.open(folder)
        yield store
        store.close()

    def put(self, store: Store, start: int, stop: int, tenant: int = 0, space: Namespace = SPACE) -> None:
        """Write pages that must be taken."""
        writes = [Write(page(number, tenant), [content(number)], 1) for number in range(start, stop)]
        assert all(outcome.whole for outcome in store.write(space, writes))

    def get(self, store: Store, number: int, space: Namespace = SPACE) -> Outcome:
        """Read a page; if that is DONE, its bytes are right."""
        into = allocate(PAGE_BYTES)
        (outcome,) = store.read(space, [Read(key(number), [into])])
        assert outcome is not Outcome.DONE or into == content(number)
        return outcome

    def there(self, store: Store, numbers: Iterable[int], space: Namespace = SPACE) -> list[bool]:
        """Whether each page is there, asked for by itself."""
        return [store.find(space, [key(number)])[0] for number in numbers]

    def test_returns_what_was_written(self, store: Store) -> None:  # noqa: D102
        self.put(store, 0, 20)
        assert [self.get(store, number) for number in range(20)] == [Outcome.DONE] * 20

    def test_reads_a_batch(self, store: Store) -> None:  # noqa: D102
        self.put(store, 0, 3)
        buffers = [allocate(PAGE_BYTES) for _ in range(4)]
        reads = [Read(key(number), [buffer]) for number, buffer in zip((2, 9, 0, 1), buffers, strict=True)]
        assert list(store.read(SPACE, reads)) == [Outcome.DONE, Outcome.MISSING, Outcome.DONE, Outcome.DONE]
        assert (buffers[0], buffers[2], buffers[3]) == (content(2), content(0), content(1))

    def test_a_page_in_parts(self, store: Store) -> None:  # noqa: D102
        whole = content(5)
        (outcome,) = store.write(SPACE, [Write(page(5), [whole[:4096], whole[4096:]], 1)])
        parts = [allocate(1000), allocate(PAGE_BYTES - 1000)]
        assert outcome is Outcome.DONE
        assert list(store.read(SPACE, [Read(key(5), parts)])) == [Outcome.DONE]
        assert bytes(parts[0]) + bytes(parts[1]) == whole

    def test_buffers_need_not_be_aligned(self, store: Store) -> None:  # noqa: D102
        crooked = allocate(PAGE_BYTES + 13)[13:]
        crooked[:] = content(6)
        assert list(store.write(SPACE, [Write(page(6), [crooked], 1)])) == [Outcome.DONE]
        into = allocate(PAGE_BYTES + 7)[7:]
        assert list(store.read(SPACE, [Read(key(6), [into])])) == [Outcome.DONE]
        assert into == content(6)

    def test_finds_what_is_there(self, store: Store) -> None:  # noqa: D102
        self.put(store, 0, 4)
        assert self.there(store, (0, 7, 3, 8)) == [True, False, True, False]
        assert list(store.find(SPACE, [key(n) for n in (0, 1, 3, 8, 9)])) == [True, True, True, False, False]
        assert list(store.find(SPACE, [key(9), key(8)])) == [False, False]
        assert list(store.find(SPACE, [])) == []

    def test_a_page_that_no_record_can_tell_is_refused_and_costs_nothing(self, store: Store) -> None:  # noqa: D102
        for wrong in (Page(key(1), 1 << 64, 16), Page(key(1), -1, 16), Page(key(1), 1, 1 << 32)):
            outcome, fine = store.write(
                SPACE, [Write(wrong, [content(1)], 1), Write(page(2), [content(2)], 1)]
            )
            assert (outcome, fine.whole) == (Outcome.FAILED, True)
        assert self.there(store, (1, 2)) == [False, True]
        assert store.usage().pages == 1

    def test_a_page_that_is_there_is_done_at_once(self, store: Store) -> None:  # noqa: D102
        self.put(store, 0, 1)
        before = store.usage()
        assert list(store.write(SPACE, [Write(page(0), [content(0)], 2)])) == [Outcome.THERE]
        assert store.usage() == before

    def test_two_namespaces_never_meet(self, store: Store) -> None:  # noqa: D102
        other = BASE.namespace(lora="fingerprint")
        self.put(store, 0, 2)
        assert self.there(store, (0, 1), other) == [False, False]
        assert self.get(store, 0, other) is Outcome.MISSING
        store.write(other, [Write(page(0), [content(100)], 1)])
        assert self.get(store, 0) is Outcome.DONE

    @pytest.mark.parametrize("offset", [0, 40, 200, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 5000])
    def test_a_flipped_bit_is_a_miss_and_gone(self, store: Store, offset: int) -> None:  # noqa: D102
        self.put(store, 0, 2)

        def flip(record: bytearray) -> None:
            record[offset] ^= 1

        self.damage(store, key(0), flip)
        assert self.get(store, 0) in (Outcome.DAMAGED, Outcome.MISSING)
        assert self.get(store, 0) is Outcome.MISSING
        assert self.there(store, (0, 1)) == [False, True]
        self.put(store, 0, 1)
        assert self.get(store, 0) is Outcome.DONE

    def test_a_zeroed_page_is_a_miss(self, store: Store) -> None:  # noqa: D102
        self.put(store, 0, 1)

        def zero(record: bytearray) -> None:
            record[:] = bytes(len(record))

        self.damage(store, key(0), zero)
        assert self.get(store, 0) in (Outcome.DAMAGED, Outcome.MISSING)
        assert self.get(store, 0) is Outcome.MISSING

    @pytest.mark.parametrize("left", [0, 100, HEADER_BYTES, HEADER_BYTES + 5000])
    def test_a_truncated_page_is_a_miss(self, store: Store, left: int) -> None:  # noqa: D102
        self.put(store, 0, 1)

        def cut(record: bytearray) -> None:
            del record[left:]

        self.damage(store, key(0), cut)
        assert self.get(store, 0) in (Outcome.DAMAGED, Outcome.MISSING)
        assert self.get(store, 0) is Outcome.MISSING

    def test_a_page_of_another_size_is_refused(self, store: Store) -> None:  # noqa: D102
        (outcome,) = store.write(SPACE, [Write(page(0), [content(0)[:-1]], 1)])
        assert outcome is Outcome.FAILED
        assert list(store.find(SPACE, [key(0)])) == [False]

    def test_clears_one_tenant(self, store: Store) -> None:  # noqa: D102
        self.put(store, 0, 3, tenant=7)
        self.put(store, 3, 5, tenant=8)
        assert store.clear(7) == 3
        assert self.there(store, range(5)) == [False, False, False, True, True]
        assert self.get(store, 4) is Outcome.DONE

    def test_clears_everything_for_good(self, store: Store, folder: Path) -> None:  # noqa: D102
        self.put(store, 0, 3, tenant=7)
        self.put(store, 3, 5)
        assert store.clear() == 5
        assert [self.get(store, number) for number in range(5)] == [Outcome.MISSING] * 5
        self.put(store, 9, 10)
        assert self.get(store, 9) is Outcome.DONE
        store.close()
        again = self.open(folder)
        assert self.there(again, (0, 3, 9)) == [False, False, True]
        again.close()

    def test_a_restart_finds_its_pages(self, store: Store, folder: Path) -> None:  # noqa: D102
        self.put(store, 0, 10)
        store.close()
        again = self.open(folder)
        assert list(again.find(SPACE, [key(n) for n in range(11)])) == [True] * 10 + [False]
        assert [self.get(again, number) for number in range(10)] == [Outcome.DONE] * 10
        again.close()

    def test_tells_what_came_and_went(self, folder: Path) -> None:  # noqa: D102
        store, changes = self.open(folder), list[Change]()
        store.listen(changes.append)
        self.put(store, 0, 2, tenant=7)
        store.clear(7)
        store.close()
        stored = sorted(told for change in changes if change.stored for told in change.pages)
        removed = sorted(told for change in changes if not change.stored for told in change.pages)
        assert stored == removed == [(1, 16), (2, 32)]

    def test_many_threads_at_once(self, store: Store) -> None:
        """Writers of the same pages and readers race: a reader gets the right bytes or none."""
        stop = threading.Event()

        def write() -> set[Outcome]:
            return {
                outcome
                for number in range(30)
                for outcome in store.write(SPACE, [Write(page(number), [content(number)], 1)])
            }

        def read() -> set[Outcome]:
            seen: set[Outcome] = set()
            while not stop.is_set():
                seen.update(self.get(store, number) for number in range(30))
            return seen

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            writers = [pool.submit(write) for _ in range(2)]
            written = set[Outcome]().union(*(writer.result() for writer in writers))
            stop.set()
            seen = set[Outcome]().union(*(reader.result() for reader in readers))
        assert written <= {Outcome.DONE, Outcome.THERE, Outcome.DROPPED}
        assert seen <= {Outcome.DONE, Outcome.MISSING}
        assert [self.get(store, number) for number in range(30)] == [Outcome.DONE] * 30


def told(changes: Sequence[Change]) -> set[tuple[int, int]]:
    """What is there after these changes."""
    there: set[tuple[int, int]] = set()
    for change in changes:
        there = there | set(change.pages) if change.stored else there - set(change.pages)
    return there
