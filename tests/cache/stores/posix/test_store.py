"""`Posix` under the contract, and what is its own."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cache.errors import FolderError, ForeignError, SettingsError
from cache.memory import allocate
from cache.record import HEADER_BYTES
from cache.stores import Limits, Settings, open_store
from cache.stores.collector import collect
from cache.stores.names import name_of
from cache.stores.posix import Posix
from cache.testing import PAGE_BYTES, SPACE, StoreContract, content, key, page
from cache.tiers.base import Outcome, Read, Store, Write
from tests.cache import mounts

RECORD = HEADER_BYTES + PAGE_BYTES


def make(folder: Path, page_bytes: int = PAGE_BYTES, cap: int = 0) -> Posix:
    return Posix(folder, Settings(page_bytes=page_bytes, limits=Limits(cap=cap)))


def path_of(store: Store, key: bytes) -> Path:
    assert isinstance(store, Posix)
    return Path(store.shelf.where) / name_of(store._root.generation, SPACE, key)


def put(store: Store, start: int, stop: int) -> list[Outcome]:
    return list(store.write(SPACE, [Write(page(n), [content(n)], 1) for n in range(start, stop)]))


def get(store: Store, number: int) -> Outcome:
    into = allocate(PAGE_BYTES)
    (outcome,) = store.read(SPACE, [Read(key(number), [into])])
    assert outcome is not Outcome.DONE or into == content(number)
    return outcome


def drafts(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]


class TestPosix(StoreContract):
    def open(self, folder: Path) -> Store:
        return make(folder)

    def damage(self, store: Store, key: bytes, change: Callable[[bytearray], None]) -> None:
        path = path_of(store, key)
        record = bytearray(path.read_bytes())
        change(record)
        path.write_bytes(record)


def test_a_path_opens_it_and_keeps_its_id(tmp_path: Path) -> None:
    first = open_store(str(tmp_path / "s"), Settings(page_bytes=PAGE_BYTES))
    second = open_store(str(tmp_path / "s"), Settings(page_bytes=PAGE_BYTES))
    assert first.store_id == second.store_id
    assert put(first, 0, 1) == [Outcome.DONE]
    assert get(second, 0) is Outcome.DONE
    first.close()
    second.close()


@pytest.mark.parametrize("page_bytes", [1, 4095, 4097, 12288])
def test_pages_of_any_size(tmp_path: Path, page_bytes: int) -> None:
    store = make(tmp_path / "s", page_bytes)
    data = content(3, page_bytes)
    assert store.write(SPACE, [Write(page(3), [data], 1)]) == [Outcome.DONE]
    into = allocate(page_bytes)
    assert store.read(SPACE, [Read(key(3), [into])]) == [Outcome.DONE]
    assert into == data
    assert path_of(store, key(3)).stat().st_size % 4096 == 0
    store.close()


def test_a_file_system_without_direct_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    store = make(tmp_path / "s")
    assert put(store, 0, 3) == [Outcome.DONE] * 3
    assert [get(store, n) for n in range(3)] == [Outcome.DONE] * 3
    store.close()


def test_answers_may_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.preadv, os.pwritev

    def some(buffers: Sequence[memoryview]) -> list[memoryview]:
        return [buffers[0][:4096]]

    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: read(fd, some(buffers), at))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: write(fd, some(buffers), at))
    store = make(tmp_path / "s")
    assert put(store, 0, 2) == [Outcome.DONE] * 2
    assert path_of(store, key(0)).stat().st_size == RECORD
    assert get(store, 0) is Outcome.DONE
    store.close()


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path / "s")
    put(store, 0, 1)
    real = os.pwritev

    def fill_up(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, [buffers[0][:4096]], offset)

    monkeypatch.setattr(os, "pwritev", fill_up)
    assert put(store, 1, 3) == [Outcome.FULL] * 2
    assert store.find(SPACE, [key(1)]) == [False]
    assert drafts(tmp_path) == []
    assert get(store, 0) is Outcome.DONE
    store.close()


def test_look_ups_are_remembered(tmp_path: Path) -> None:
    ours, theirs = make(tmp_path / "s"), make(tmp_path / "s")
    put(theirs, 0, 100)
    keys = [key(n) for n in range(200)]
    assert sum(ours.find(SPACE, keys)) == 100
    asked = 0
    has = ours._files.has

    def count(name: str) -> bool:
        nonlocal asked
        asked += 1
        return has(name)

    ours._files.has = count  # type: ignore[method-assign]
    assert sum(ours.find(SPACE, keys)) == 100
    assert asked == 0
    path_of(theirs, key(50)).unlink()
    assert get(ours, 50) is Outcome.MISSING
    assert sum(ours.find(SPACE, keys)) == 50
    assert sum(ours.find(SPACE, [key(0), key(50), key(51)])) == 1
    assert asked <= 8  # those between the last that is known to be there, and the one that isn't
    ours.close()
    theirs.close()


def test_others_follow_a_clear(tmp_path: Path) -> None:
    ours, theirs = make(tmp_path / "s"), make(tmp_path / "s")
    put(ours, 0, 5)
    assert theirs.find(SPACE, [key(0)]) == [True]
    assert ours.clear() == 5
    theirs.tend()
    assert theirs.find(SPACE, [key(0)]) == [False]
    put(theirs, 5, 6)
    assert get(ours, 5) is Outcome.DONE
    ours.close()
    theirs.close()


def test_no_folder_outlives_its_pages(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    put(store, 0, 50)
    assert len([path for path in tmp_path.rglob("*") if path.is_dir()]) > 30
    store.clear()
    assert [path.name for path in (tmp_path / "s").iterdir() if path.is_dir()] == []
    assert put(store, 0, 50) == [Outcome.DONE] * 50
    store.close()


def test_folders_that_go_while_pages_are_written_are_made_again(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    put(store, 0, 1)
    folder = path_of(store, key(0)).parent
    path_of(store, key(0)).unlink()
    list(store.shelf.tidy())
    assert not folder.exists()
    assert put(store, 0, 1) == [Outcome.DONE]
    store.close()


def test_a_read_makes_a_page_young(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    put(store, 0, 4)
    for number in range(4):
        os.utime(path_of(store, key(number)), (1000, 1000))
    get(store, 1)
    store.touch(SPACE, [key(2), key(77)], used=5)
    store.tend()
    young = [path_of(store, key(n)).stat().st_mtime > time.time() - 100 for n in range(4)]
    assert young == [False, True, True, False]
    os.utime(path_of(store, key(1)), (1000, 1000))
    get(store, 1)
    store.tend()
    assert path_of(store, key(1)).stat().st_mtime == 1000  # noted a moment ago: not again
    store.close()


def test_its_cap_is_held_and_what_was_used_last_stays(tmp_path: Path) -> None:
    store = make(tmp_path / "s", cap=10 * RECORD)
    put(store, 0, 30)
    for number in range(30):
        os.utime(path_of(store, key(number)), (number * 60, number * 60))
    store.tend()
    assert [n for n in range(30) if path_of(store, key(n)).exists()] == list(range(20, 30))
    usage = store.usage()
    assert (usage.pages, usage.bytes, usage.capacity, usage.evictions) == (10, 10 * RECORD, 10 * RECORD, 20)
    other = make(tmp_path / "s", cap=10 * RECORD)
    other.tend()
    assert other.usage().pages == 10
    store.close()
    other.close()


def test_two_write_a_third_reads_and_the_first_is_killed(tmp_path: Path) -> None:
    folder, script = tmp_path / "s", Path(__file__).with_name("writer.py")
    writers = [
        subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "going\n"
    store = make(folder)
    seen: list[Outcome] = []

    def read_on(until: int) -> None:
        """Follow the writers, always at the page that they are writing."""
        limit = time.monotonic() + 60
        while seen.count(Outcome.DONE) < until:
            assert time.monotonic() < limit
            seen.append(get(store, seen.count(Outcome.DONE)))

    read_on(60)
    writers[0].kill()
    read_on(200)
    writers[1].kill()
    for writer in writers:
        writer.wait(10)
        assert writer.stdout is not None
        writer.stdout.close()
    assert set(seen) <= {Outcome.DONE, Outcome.MISSING}
    for draft in drafts(folder):
        os.utime(draft, (1000, 1000))
    list(collect(store.shelf, lambda: store._root.generation, None, None))
    assert drafts(folder) == []
    store.close()


def test_what_is_not_ours_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat").write_text("precious")
    with pytest.raises(ForeignError, match="photos/cat"):
        make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_stranger_inside_is_kept(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    put(store, 0, 3)
    (path_of(store, key(0)).parent / "notes").write_text("precious")
    (tmp_path / "s" / "backup").mkdir()
    store.clear()
    assert [path.read_text() for path in tmp_path.rglob("notes")] == ["precious"]
    assert (tmp_path / "s" / "backup").is_dir()
    store.close()


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="can't be used: File exists"):
        make(tmp_path / "file")
    with pytest.raises(SettingsError, match="at least one stream"):
        Settings(page_bytes=1, streams=0)


def test_of_two_engines_one_collects(tmp_path: Path) -> None:
    stores = [make(tmp_path / "s", cap=10 * RECORD) for _ in range(2)]
    put(stores[0], 0, 30)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda store: store.tend(), stores))
    assert sorted(store.usage().evictions for store in stores) == [0, 20]
    for store in stores:
        store.close()


def test_tells_what_it_has_written_to_whoever_comes_late(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    put(store, 0, 3)
    assert store.residency().end_tokens.tolist() == [16, 32, 48]
    store.clear()
    assert store.residency().end_tokens.tolist() == []
    store.close()


@pytest.mark.parametrize("tenant", [7, None])
def test_what_is_written_during_a_clear_does_not_stay(tmp_path: Path, tenant: int | None) -> None:
    store = make(tmp_path / "s")
    write, path = store._files.write, path_of(store, key(0))

    def late(*arguments: Any) -> None:
        store.clear(tenant)
        write(*arguments)

    store._files.write = late  # type: ignore[method-assign]
    assert store.write(SPACE, [Write(page(0, 7), [content(0)], 1)]) == [Outcome.DROPPED]
    assert not path.exists()
    assert store.find(SPACE, [key(0)]) == [False]
    store.close()


def test_usage_stays_right_where_each_round_leaves_as_much(tmp_path: Path) -> None:
    stores = [make(tmp_path / "s", cap=10 * RECORD) for _ in range(2)]
    for round_ in range(4):
        put(stores[0], 10 * round_, 10 * round_ + 10)
        lease = tmp_path / "s" / "collector.json"
        if lease.exists():
            os.utime(lease, (1, 1))
        for store in stores:
            store._upkeep._due = 0.0
            store.tend()
        assert [store.usage().pages for store in stores] == [10, 10]
    for store in stores:
        store.close()


def fill(folder: Path) -> None:
    with (folder / "filling").open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def test_a_full_file_system_is_read_collected_and_cleared(tmp_path: Path) -> None:
    with mounts.memory(tmp_path / "m", "1m") as mount:
        store = make(mount / "s", cap=20 * RECORD)
        store.tend()
        assert put(store, 0, 40) == [Outcome.DONE] * 40
        fill(mount)
        assert put(store, 100, 101) == [Outcome.FULL]
        os.utime(mount / "s" / "collector.json", (1, 1))
        store._upkeep._due = 0.0
        store.tend()
        assert store.available
        assert store.usage().pages == 20
        assert drafts(mount) == []
        fill(mount)
        assert store.clear() == 20
        assert put(store, 0, 1) == [Outcome.DONE]
        store.close()


def test_where_it_may_only_read_it_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mounts.memory(tmp_path / "m", "1m") as mount:
        other = make(mount / "s")
        put(other, 0, 10)
        damaged = path_of(other, key(9))
        damaged.write_bytes(bytes(RECORD))
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        store = make(mount / "s")
        assert put(store, 20, 30) == [Outcome.FAILED] * 10
        for _ in range(3):
            store._upkeep._due = 0.0
            store.tend()
        assert {get(store, 9) for _ in range(5)} == {Outcome.DAMAGED}
        assert [get(store, number) for number in range(9)] == [Outcome.DONE] * 9
        assert caplog.text.count("it is only read") == 1
        assert caplog.text.count("collecting failed") == 1
        store.close()
        other.close()


def test_a_folder_that_goes_away_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make(tmp_path / "s")
    (tmp_path / "s").rename(tmp_path / "t")
    for _ in range(5):
        store.tend()
    assert not store.available
    assert caplog.text.count("it isn't a store, or isn't mounted") == 1
    (tmp_path / "t").rename(tmp_path / "s")
    store.tend()
    assert store.available
    store.close()
