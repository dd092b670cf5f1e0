"""The storage backend's questions, on real tiers and buffers as SGLang's pages are: K and V apart."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from cache.economics import Priors
from cache.hierarchy import Hierarchy
from cache.keys import Base, Namespace
from cache.memory import Parts, allocate
from cache.state import Level, Settings
from cache.stores.base import Settings as StoreSettings
from cache.stores.opening import open_store
from cache.tiers.base import Outcome, Read, Store, Tier, Write
from cache.tiers.ssd import Limits, Ssd
from engine_adapters.sglang.inside.names import Names, Owner
from engine_adapters.sglang.inside.shelf import BATCH, Shelf
from tests.cache.remote import Remote

BASE = Base(
    weights="w", kv_dtype="float32", kv_layout="l", attention_backend="a", page_tokens=16, engine="sglang"
)
BYTES = 8192
COUNT = 5
KEYS = [hashlib.sha256(bytes([number])).hexdigest() for number in range(COUNT)]
SECONDS = 0.2

MakeShelf = Callable[..., Shelf]


@pytest.fixture
def make() -> Iterator[MakeShelf]:
    shelves: list[Shelf] = []

    def shelf(*stores: Store, prefill: float = 10.0) -> Shelf:
        settings = Settings(
            page_tokens=16,
            page_bytes=BYTES,
            threshold=0,
            priors=Priors(prefill_tokens_per_second=prefill),
            load_seconds=SECONDS,
            look_seconds=1.0,
        )
        names = Names(16)
        names.note(KEYS, range(16 * COUNT), None, Owner("salt"))
        remote = any(store.remote for store in stores)
        tiers = Hierarchy(settings, None, [Level(store) for store in stores])
        made = Shelf(tiers, BASE.namespace(), names, BYTES, remote=remote, load_seconds=SECONDS)
        shelves.append(made)
        return made

    yield shelf
    for one in shelves:
        one.close()


def ssd(folder: Path) -> Ssd:
    return Ssd(folder / "ssd", BASE.fingerprint, BYTES, Limits(cap=4 << 20, free_floor=0))


def posix(folder: Path) -> Store:
    return open_store(str(folder / "shared"), StoreSettings(page_bytes=BYTES))


def host_pages(fill: int = 0, count: int = COUNT) -> list[Parts]:
    """Pages of two buffers, each of its own content; `fill` 0: empty."""
    pages: list[Parts] = []
    for number in range(count):
        parts = [allocate(BYTES // 2), allocate(BYTES // 2)]
        for half, part in enumerate(parts):
            part[:] = bytes([fill + 2 * number + half if fill else 0]) * len(part)
        pages.append(parts)
    return pages


def content(pages: Sequence[Parts]) -> list[bytes]:
    return [b"".join(parts) for parts in pages]


@pytest.mark.parametrize("kind", [ssd, posix])
def test_what_was_put_is_found_and_comes_back_whole(
    make: MakeShelf, tmp_path: Path, kind: Callable[[Path], Store]
) -> None:
    shelf = make(kind(tmp_path))
    stored, into = host_pages(fill=1), host_pages()
    assert shelf.exists(KEYS) == 0
    shelf.put(KEYS[:4], stored[:4])
    assert shelf.tiers.drain(10)
    assert shelf.exists(KEYS) == 4
    assert shelf.get(KEYS[:4], into[:4]) == 4
    assert content(into[:4]) == content(stored[:4])
    assert content(into[4:]) == content(host_pages()[4:])


def test_what_sglang_has_itself_outlasts_what_it_never_asked_for_again(
    make: MakeShelf, tmp_path: Path
) -> None:
    limits = Limits(cap=4 * (BYTES + 4096), free_floor=0)
    shelf = make(Ssd(tmp_path / "ssd", BASE.fingerprint, BYTES, limits))
    for key, page in zip(KEYS, host_pages(fill=1), strict=True):
        shelf.put([key], [page])
        shelf.touch(KEYS[:1])
    assert shelf.tiers.drain(10)
    assert [shelf.exists([key]) for key in KEYS[:2]] == [1, 0]


def test_pages_outlive_the_engine_and_tell_their_names(make: MakeShelf, tmp_path: Path) -> None:
    first = make(ssd(tmp_path))
    first.put(KEYS, host_pages(fill=1))
    first.close()
    second = make(ssd(tmp_path))
    into = host_pages()
    assert second.get(KEYS, into) == COUNT  # also without having been asked before
    assert content(into) == content(host_pages(fill=1))
    snapshot = second.tiers.snapshot(Tier.SSD)
    assert snapshot is not None
    assert sorted(snapshot.known.end_tokens.tolist()) == [16, 32, 48, 64, 80]
    assert set(snapshot.known.prefix_keys.tolist()) == {first.names.page(key).prefix_key for key in KEYS}


def test_a_mixed_prefix_comes_from_both(make: MakeShelf, tmp_path: Path) -> None:
    disk, shared = ssd(tmp_path), Remote()
    shelf = make(disk, shared)
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.drain(10)
    disk.clear()
    shelf.put(KEYS[1:3], host_pages(fill=1)[1:3])
    assert shelf.tiers.drain(10)
    into = host_pages()
    assert shelf.exists(KEYS) == COUNT
    assert [span.tier for span in shelf.tiers.match(BASE.namespace(), raw(KEYS)).spans] == [
        Tier.SHARED,
        Tier.SSD,
        Tier.SHARED,
    ]
    assert shelf.get(KEYS, into) == COUNT
    assert content(into) == content(host_pages(fill=1))


def test_what_came_from_shared_is_in_ssd_then(make: MakeShelf, tmp_path: Path) -> None:
    disk, shared = ssd(tmp_path), Remote()
    shelf = make(disk, shared)
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.drain(10)
    disk.clear()
    written = len(shared.pages)
    for tier in (Tier.SHARED, Tier.SSD):
        assert [span.tier for span in shelf.tiers.match(BASE.namespace(), raw(KEYS)).spans] == [tier]
        into = host_pages()
        assert shelf.get(KEYS, into) == COUNT
        assert content(into) == content(host_pages(fill=1))
        assert shelf.tiers.drain(10)
    assert len(shared.pages) == written
    snapshot = shelf.tiers.snapshot(Tier.SSD)
    assert snapshot is not None
    assert sorted(snapshot.known.end_tokens.tolist()) == [16, 32, 48, 64, 80]


def test_nothing_is_kept_once_it_is_moved(make: MakeShelf, tmp_path: Path) -> None:
    disk = ssd(tmp_path)
    shelf = make(disk, Remote())
    shelf.put(KEYS, host_pages(fill=1))
    disk.clear()
    shelf.put(KEYS[:2], host_pages(fill=1)[:2])
    assert shelf.get(KEYS, host_pages()) == COUNT
    assert shelf.tiers.drain(10)
    assert shelf._coming.spare == 2 * BATCH, "which has a look at what has ended"
    assert shelf._going.spare == 2 * BATCH
    assert shelf.tiers.activity() == (0, 0, 0)


def test_memory_for_the_next_read_comes_before_a_copy_in_ssd(make: MakeShelf, tmp_path: Path) -> None:
    disk, shared = ssd(tmp_path), Remote()
    shelf = make(disk, shared)
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.drain(10)
    disk.clear()
    busy = shelf._coming.take(BATCH)
    assert shelf.get(KEYS, host_pages()) == COUNT
    assert shelf.tiers.drain(10)
    assert [span.tier for span in shelf.tiers.match(BASE.namespace(), raw(KEYS)).spans] == [Tier.SHARED]
    shelf._coming.give(busy)
    assert shelf.get(KEYS, host_pages()) == COUNT
    assert shelf.tiers.drain(10)
    assert [span.tier for span in shelf.tiers.match(BASE.namespace(), raw(KEYS)).spans] == [Tier.SSD]


def test_what_loads_slower_than_it_is_computed_isnt_there(make: MakeShelf, tmp_path: Path) -> None:
    shelf = make(ssd(tmp_path), prefill=1e9)
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.drain(10)
    assert shelf.exists(KEYS) == 0


class Hanging(Remote):
    """Reads and writes that don't return until they are let go, and write to their buffers then."""

    def __init__(self) -> None:
        super().__init__()
        self.works = threading.Event()
        self.works.set()

    def read(self, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:
        self.works.wait(30)
        return super().read(namespace, reads)

    def write(self, namespace: Namespace, writes: Sequence[Write]) -> list[Outcome]:
        self.works.wait(30)
        return super().write(namespace, writes)


def test_a_store_that_hangs_never_touches_the_engines_pages_again(make: MakeShelf) -> None:
    store = Hanging()
    shelf = make(store)
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.drain(10)
    assert shelf.exists(KEYS) == COUNT
    into = host_pages()
    store.works.clear()
    assert shelf.get(KEYS, into) == 0
    written = host_pages(fill=100)
    shelf.put([hashlib.sha256(b"x").hexdigest()], written[:1])
    for parts in (*into, *written):
        for part in parts:
            part[:] = b"\xee" * len(part)  # somebody else's by now
    store.works.set()
    assert shelf.tiers.drain(10)
    assert {part[0] for parts in into for part in parts} == {0xEE}
    assert store.pages[hashlib.sha256(b"x").digest()] == content(host_pages(fill=100))[0]
    fresh = host_pages()
    assert shelf.get(KEYS, fresh) == COUNT
    assert content(fresh) == content(host_pages(fill=1))


def test_a_store_that_hangs_keeps_no_page_from_ssd(make: MakeShelf, tmp_path: Path) -> None:
    """It keeps the memory of one batch, and SGLang's are as large as all that a batch can take."""
    disk, store = ssd(tmp_path), Hanging()
    shelf = make(disk, store)
    store.works.clear()
    first = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(BATCH)]
    shelf.put(first, host_pages(count=BATCH))
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.usage()[Tier.SSD].pages == BATCH + COUNT
    store.works.set()
    assert shelf.tiers.drain(10)


def test_who_is_to_end_waits_for_no_store(make: MakeShelf) -> None:
    store = Hanging()
    shelf = make(store)
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.drain(10)
    shelf._load_seconds = 60.0
    store.works.clear()
    shelf.stopping = lambda: True
    into, begun = host_pages(), time.monotonic()
    assert shelf.get(KEYS, into) == 0
    shelf.put([hashlib.sha256(b"x").hexdigest()], host_pages(count=1))
    assert time.monotonic() - begun < 20
    store.works.set()
    assert shelf.tiers.drain(10)
    assert content(into) == content(host_pages())


def test_with_other_weights_nothing_is_here(make: MakeShelf, tmp_path: Path) -> None:
    shelf = make(ssd(tmp_path))
    shelf.put(KEYS[:4], host_pages(fill=1)[:4])
    assert shelf.tiers.drain(10)
    assert shelf.exists(KEYS) == 4
    shelf.retired = True
    shelf.put(KEYS[4:], host_pages(fill=1)[4:])
    assert (shelf.get(KEYS[:4], host_pages()[:4]), shelf.exists(KEYS)) == (0, 0)
    assert shelf.tiers.usage()[Tier.SSD].pages == 4


class SlowSsd(Ssd):
    """Reads that wait until they are let go."""

    works = threading.Event()

    def read(self, namespace: Namespace, reads: Sequence[Read]) -> Sequence[Outcome]:
        self.works.wait(30)
        return super().read(namespace, reads)


def test_a_failure_gives_no_page_back_that_a_disk_still_writes_to(
    make: MakeShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlowSsd.works.set()
    disk = SlowSsd(tmp_path / "ssd", BASE.fingerprint, BYTES, Limits(cap=4 << 20, free_floor=0))
    shared = Remote()
    shelf = make(disk, shared)
    shelf.put(KEYS, host_pages(fill=1))
    assert shelf.tiers.drain(10)
    disk.clear()
    shelf.put(KEYS[3:], host_pages(fill=1)[3:])
    assert shelf.tiers.drain(10)
    assert shelf.exists(KEYS) == COUNT  # three pages in shared, two in ssd behind them
    monkeypatch.setattr(shelf, "_promote", Mock(side_effect=RuntimeError("a fault of ours")))
    SlowSsd.works.clear()
    into, returned = host_pages(), threading.Event()

    def get() -> None:
        with pytest.raises(RuntimeError):
            shelf.get(KEYS, into)
        returned.set()

    caller = threading.Thread(target=get)
    caller.start()
    assert not returned.wait(3 * SECONDS), "it returned while the disk may still write"
    SlowSsd.works.set()
    caller.join(30)
    assert returned.is_set()


def test_ranks_keep_no_more_than_the_one_that_has_least(make: MakeShelf, tmp_path: Path) -> None:
    """Each answers for its own part; SGLang takes the least answer of all, of looks and of reads."""
    stored = host_pages(fill=1)
    ranks = [make(ssd(tmp_path / str(rank))) for rank in range(2)]
    for shelf, count in zip(ranks, (5, 4), strict=True):
        shelf.put(KEYS[:count], stored[:count])
        assert shelf.tiers.drain(10)
    damage(tmp_path / "1/ssd/00/pages", content(stored)[2])
    found = [shelf.exists(KEYS) for shelf in ranks]
    assert found == [5, 4]
    into = [host_pages(count=4) for _ in ranks]
    got = [shelf.get(KEYS[: min(found)], pages) for shelf, pages in zip(ranks, into, strict=True)]
    assert got == [4, 2]
    for pages in into:
        assert content(pages[: min(got)]) == content(stored[: min(got)])


def damage(pages: Path, page: bytes) -> None:
    """Change a byte of a page on disk."""
    on_disk = bytearray(pages.read_bytes())
    on_disk[on_disk.index(page)] ^= 1
    pages.write_bytes(on_disk)


def raw(keys: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(key) for key in keys]
