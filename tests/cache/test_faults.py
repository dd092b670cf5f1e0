"""Disks that lie, fill up, fail, hang; processes that die. Nothing raises, nothing wrong is ever read."""

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cache.errors import FolderError
from cache.maintenance import open_store
from cache.memory import allocate
from cache.record import Verdict
from cache.testing import BASE, PAGE_BYTES, SPACE, content, key, page, pages
from cache.tickets import Phase
from cache.tiers.base import Outcome, Read, Tier, Write
from cache.tiers.ssd import Limits, Ssd
from cache.tiers.ssd.folder import physical
from tests.cache import mounts, writer
from tests.cache.build import keys, wait_for
from tests.cache.conftest import MakeRig
from tests.cache.faults import Disk


def make(folder: Path, disk: Disk | None = None, cap: int = 4 << 20) -> Ssd:
    limits = Limits(cap=cap, free_floor=0)
    return Ssd(folder, BASE.fingerprint, PAGE_BYTES, limits, opener=(disk or Disk()).open)


def put(store: Ssd, start: int, stop: int) -> list[Outcome]:
    return store.write(SPACE, [Write(page(n), [content(n)], n + 1) for n in range(start, stop)])


def get(store: Ssd, number: int) -> Outcome:
    into = allocate(PAGE_BYTES)
    (outcome,) = store.read(SPACE, [Read(key(number), [into])])
    assert outcome is not Outcome.DONE or into == content(number)
    return outcome


def test_a_disk_that_fills_up_in_mid_write_and_recovers(tmp_path: Path) -> None:
    disk = Disk()
    store = make(tmp_path / "f", disk)
    assert set(put(store, 0, 10)) == {Outcome.DONE}
    disk.write_error = errno.ENOSPC
    store._grow_after = 0.0
    assert set(put(store, 100, 110)) == {Outcome.FULL}
    assert [get(store, n) for n in (1, 9, 100)] == [Outcome.DONE, Outcome.DONE, Outcome.MISSING]
    disk.write_error = None
    store._grow_after = 0.0
    assert set(put(store, 100, 110)) == {Outcome.DONE}
    store.audit()
    store.close()
    store = make(tmp_path / "f")
    assert [get(store, n) for n in [*range(1, 10), *range(100, 110)]] == [Outcome.DONE] * 19
    store.close()


def test_what_was_being_written_does_not_survive_a_clear(tmp_path: Path) -> None:
    disk = Disk()
    store = make(tmp_path / "f", disk)
    put(store, 0, 3)
    disk.works.clear()
    outcomes: list[Outcome] = []
    writing = threading.Thread(target=lambda: outcomes.extend(put(store, 10, 11)))
    writing.start()
    wait_for(lambda: disk.hanging == 1)
    clearing = threading.Thread(target=store.clear)
    clearing.start()
    wait_for(lambda: disk.hanging == 2)
    disk.works.set()
    writing.join()
    clearing.join()
    assert outcomes == [Outcome.DROPPED]
    assert store.find(SPACE, [key(0), key(10)]) == [False, False]
    assert put(store, 10, 11) == [Outcome.DONE]
    store.audit()
    store.close()
    store = make(tmp_path / "f")
    assert get(store, 10) is Outcome.DONE
    store.close()


def test_space_that_could_not_be_given_back_is_used_again(tmp_path: Path) -> None:
    disk = Disk()
    store = make(tmp_path / "f", disk, cap=1 << 20)
    put(store, 0, 100)
    many = store.usage().pages
    disk.write_error = errno.EIO
    with pytest.raises(FolderError):
        store.clear()
    put(store, 0, 1)
    store.tend()
    disk.write_error = None
    put(store, 100, 200)
    disk.write_error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        store._shrink(300_000)
    disk.write_error = None
    store._grow_after = 0.0
    assert set(put(store, 300, 400)) == {Outcome.DONE}
    assert store.usage().pages >= many
    store.audit()
    store.close()


def test_a_clear_that_failed_half_way_is_made_good(tmp_path: Path) -> None:
    disk = Disk()
    store = make(tmp_path / "f", disk)
    put(store, 0, 3)
    disk.write_error = errno.EIO
    with pytest.raises(FolderError):
        store.clear()
    disk.write_error = None
    store.tend()
    assert set(put(store, 5, 8)) == {Outcome.DONE}
    store.close()
    store = make(tmp_path / "f")
    assert [get(store, n) for n in (0, 5)] == [Outcome.MISSING, Outcome.DONE]
    store.close()


def test_a_write_that_has_just_begun_does_not_survive_a_clear(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    begun, on = threading.Event(), threading.Event()
    write = rig.ssd.write

    def late(*arguments: Any) -> Sequence[Outcome]:
        begun.set()
        on.wait(20)
        return write(*arguments)

    monkeypatch.setattr(rig.ssd, "write", late)
    rig.store(0, 1)
    assert begun.wait(20)
    clearing = threading.Thread(target=rig.tiers.clear)
    clearing.start()
    wait_for(lambda: rig.where(0, 1) == [])
    on.set()
    clearing.join()
    assert rig.tiers.drain(20)
    assert rig.where(0, 1) == []


def test_buffers_of_another_size_lose_nothing(tmp_path: Path) -> None:
    store = make(tmp_path / "f")
    put(store, 0, 1)
    for size in (0, 4096, 2 * PAGE_BYTES):
        assert store.read(SPACE, [Read(key(0), [allocate(PAGE_BYTES * 2)[:size]])]) == [Outcome.FAILED]
    with pytest.raises(ValueError, match="read-only"):
        store.read(SPACE, [Read(key(0), [memoryview(bytes(PAGE_BYTES))])])
    assert store._book.held == 0
    assert get(store, 0) is Outcome.DONE
    store.close()


@pytest.mark.parametrize("direct", [True, False])
def test_a_page_in_more_parts_than_one_call_takes(tmp_path: Path, direct: bool) -> None:
    limits = Limits(cap=4 << 20, free_floor=0)
    store = Ssd(tmp_path / "f", BASE.fingerprint, PAGE_BYTES, limits, direct=direct)
    whole, into = content(1), allocate(PAGE_BYTES)
    parts, buffers = ([view[at : at + 4] for at in range(0, PAGE_BYTES, 4)] for view in (whole, into))
    assert store.write(SPACE, [Write(page(1), parts)]) == [Outcome.DONE]
    assert store.read(SPACE, [Read(key(1), buffers)]) == [Outcome.DONE]
    assert into == whole
    store.close()


@pytest.mark.parametrize(("file_system", "size"), [(mounts.memory, "1m"), (mounts.disk, 4 << 20)])
def test_a_real_disk_that_fills_up_and_recovers(
    tmp_path: Path, file_system: Callable[..., AbstractContextManager[Path]], size: str | int
) -> None:
    with file_system(tmp_path / "m", size) as mount:
        (mount / "other").mkdir()
        take_all_but(mount, 600_000, mount / "other" / "file")
        store = make(mount / "f", cap=64 << 20)
        assert set(put(store, 0, 100)) == {Outcome.DONE}
        few = store.usage().pages
        assert 5 < few < 60
        (mount / "other" / "file").unlink()
        store._grow_after = 0.0
        put(store, 100, 200)
        assert store.usage().pages > few + 30
        assert [get(store, n) for n in range(195, 200)] == [Outcome.DONE] * 5
        store.audit()
        store.close()


def take_all_but(mount: Path, left: int, path: Path) -> None:
    stat = os.statvfs(mount)
    path.write_bytes(bytes(max(stat.f_bavail * stat.f_frsize - left, 1)))


def test_a_disk_that_can_not_be_read(tmp_path: Path) -> None:
    disk = Disk()
    store = make(tmp_path / "f", disk)
    put(store, 0, 3)
    disk.read_error = errno.EIO
    assert get(store, 1) is Outcome.FAILED
    disk.read_error = None
    assert [get(store, n) for n in range(3)] == [Outcome.DONE, Outcome.MISSING, Outcome.DONE]
    store.audit()
    store.close()


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_disk_that_can_not_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture, error: int) -> None:
    """EROFS: the kernel turns a file system read-only under us when its disk fails."""
    disk = Disk()
    store = make(tmp_path / "f", disk)
    put(store, 0, 3)
    disk.write_error = error
    assert set(put(store, 10, 20)) <= {Outcome.FAILED, Outcome.FULL}
    assert caplog.text.count("writing slots") <= 1, "the log isn't filled page by page"
    assert [get(store, n) for n in range(3)] == [Outcome.DONE] * 3
    with pytest.raises(FolderError, match="can't be cleared"):
        store.clear()
    disk.write_error = None
    store._grow_after = 0.0
    assert set(put(store, 10, 20)) == {Outcome.DONE}
    store.audit()
    store.close()


def test_a_mount_that_turns_read_only(tmp_path: Path) -> None:
    with mounts.memory(tmp_path / "m", "2m") as mount:
        store = make(mount / "f")
        put(store, 0, 5)
        store.close()
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with pytest.raises(FolderError, match="Read-only file system: mount it writable"):
            make(mount / "f")
        verdicts = [checked.verdict for checked in open_store(str(mount / "f")).verify()]
        assert verdicts == [Verdict.WHOLE] * 5


def test_a_disk_that_fails_at_once_is_no_fast_one(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 16)
    rig.drop_host()
    rig.disk.slow_seconds = 0.05
    rig.loaded(0, 8)
    believed = rig.tiers.rates()[Tier.SSD]
    rig.drop_host()
    rig.disk.slow_seconds, rig.disk.read_error = 0.0, errno.EIO
    assert rig.loaded(0, 16).ready == 0
    assert rig.tiers.rates()[Tier.SSD] == believed


def test_failures_are_misses_and_are_counted(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.store(0, 6)
    rig.drop_host()
    rig.disk.read_error = errno.EIO
    ticket = rig.load(0, 6)
    assert ticket.wait(5) == (Phase.DONE, 0, True)
    ticket.release()
    counts = rig.tiers.statistics().tiers[Tier.SSD]
    assert (counts.failed, counts.loaded) == (6, 0)
    rig.disk.read_error = None
    assert rig.where(0, 6) == []
    assert rig.store(0, 6) == 6


@pytest.mark.parametrize(
    "seconds", [pytest.param(2.0), pytest.param(30.0, marks=[pytest.mark.soak, pytest.mark.timeout(200)])]
)
def test_a_disk_that_hangs(make_rig: MakeRig, seconds: float) -> None:
    """Matches, stores and other tiers go on; loads end at their deadline; all comes back."""
    rig = make_rig(slots=32)
    rig.store(0, 16)
    rig.drop_host()
    rig.store(100, 104)
    rig.tiers.drain(5)
    rig.disk.works.clear()
    hung = rig.load(0, 8, seconds=0.3)
    slowest, end, number = 0.0, time.monotonic() + seconds, itertools.count(1000, 2)
    while time.monotonic() < end:
        begin = time.monotonic()
        assert rig.where(0, 16) == [(Tier.SSD, 16)]
        assert rig.loaded(100, 104).ready == 4
        first = next(number)
        rig.store(first, first + 2)
        slowest = max(slowest, time.monotonic() - begin)
        time.sleep(0.01)
    assert slowest < min(seconds / 2, 2.0), "something waited for the disk"
    assert hung.progress().phase is Phase.EXPIRED
    assert rig.disk.hanging > 0
    again = rig.load(0, 8, seconds=0.2)
    assert len(again) == 8
    assert again.wait(1) == (Phase.DONE, 0, True), "a hung read was waited for again"
    again.release()
    hung.release()
    rig.disk.works.set()
    assert rig.tiers.drain(20)
    assert rig.host is not None
    assert rig.host.book.held == 0
    assert rig.tiers.statistics().tiers[Tier.SSD].expired > 0
    rig.check(100, 104)


def test_closing_does_not_wait_for_a_disk_that_hangs_only_then(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    rig.store(0, 2)
    assert rig.tiers.drain(20)
    rig.disk.works.clear()
    closing = threading.Thread(target=rig.tiers.close, args=(0.2,))
    closing.start()
    closing.join(20)
    hung = closing.is_alive()
    rig.disk.works.set()
    closing.join()
    assert not hung
    assert "ssd hangs" in caplog.text


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    folder, cap = tmp_path / "f", 2 << 20
    processes = [start_writer(folder, first, cap) for first in (0, 10_000)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert process.stdout.readline() == "going\n"

    def shared() -> bool:
        sizes = [physical(seat) for seat in folder.glob("[0-9]*")]
        assert sum(sizes) <= cap + (256 << 10)
        return min(sizes) > cap // 4

    wait_for(shared, 30)
    for process in processes:
        kill(process)
    stores = [make(folder, cap=cap), make(folder, cap=cap)]
    assert {store._seat.path.name for store in stores} == {"00", "01"}
    assert min(store.usage().pages for store in stores) > 20
    for store in stores:
        store.close()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(6, marks=pytest.mark.slow),
        pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_kill_a_writer_at_random_moments(tmp_path: Path, kills: int) -> None:
    """Meanwhile, and after each kill, `verify` finds every byte right on the living folder."""
    folder, checked, chance = tmp_path / "f", 0, random.Random(7)
    for kill_number in range(kills):
        process = start_writer(folder, 1000 * kill_number, 2 << 20)
        assert process.stdout is not None
        found = int(process.stdout.readline())
        assert found > 0 or kill_number == 0, "the restart found nothing"
        end = time.monotonic() + chance.uniform(0.05, 1.0)
        while time.monotonic() < end:
            checked += verify(folder)
        kill(process)
        checked += verify(folder)
    assert checked > 100 * kills


def start_writer(folder: Path, first: int, cap: int) -> "subprocess.Popen[str]":
    command = [sys.executable, writer.__file__, str(folder), str(first), str(cap)]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def verify(folder: Path) -> int:
    verdicts = [checked.verdict for checked in open_store(str(folder)).verify()]
    assert set(verdicts) <= {Verdict.WHOLE}
    return len(verdicts)


def test_evictions_against_loads_pins_and_cancels(make_rig: MakeRig) -> None:
    """Threads race on a small host tier; whoever holds a lease reads the right bytes."""
    rig = make_rig(slots=24, cap=1 << 20)
    stop, trouble = threading.Event(), list[BaseException]()

    def act(seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                start = chance.randrange(0, 80, 8)
                action = chance.randrange(4)
                if action == 0:
                    rig.store(start, start + 8)
                elif action == 1:
                    pin = rig.tiers.pin(rig.tiers.match(SPACE, keys(start, start + 8)), 0.05)
                    time.sleep(chance.random() * 0.01)
                    rig.tiers.unpin(pin)
                else:
                    ticket = rig.load(start, start + 8, prefetch=action == 3)
                    if chance.random() < 0.5:
                        ready = ticket.wait(5).ready
                        rig.check(start, start + ready)
                    ticket.cancel()
        except BaseException as error:
            trouble.append(error)
            raise

    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    stop.set()
    for thread in threads:
        thread.join()
    assert trouble == []
    assert rig.tiers.drain(5)
    rig.tiers.tend()
    rig.tiers.audit()
    rig.ssd.audit()
    assert rig.host is not None
    assert rig.host.book.held == 0
    assert rig.host.book.taken == len(rig.host.book)
    assert rig.tiers.statistics().tiers[Tier.HOST].evictions > 30


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(55.0, marks=pytest.mark.slow),
        pytest.param(600.0, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
def test_random_operations_for_long(make_rig: MakeRig, seconds: float) -> None:
    """Memory stays flat, every byte read is right, and the books agree."""
    rig = make_rig(slots=32, cap=1 << 20)
    chance, begin, warm = random.Random(3), time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        for _ in range(200):
            step(rig, chance)
        rig.tiers.audit()
        rig.ssd.audit()
        if not warm and time.monotonic() - begin > seconds * 0.3:
            warm = resident_bytes()
    assert rig.tiers.drain(5)
    assert resident_bytes() - warm < 8 << 20
    time.sleep(1.6)
    rig.tiers.tend()
    assert rig.host is not None
    assert rig.host.book.held == 0
    assert rig.host.book.taken == len(rig.host.book)
    assert len(rig.tiers._state.leases) == 0
    assert len(rig.tiers._state.tickets) == 0


def step(rig: object, chance: random.Random) -> None:
    from tests.cache.build import Rig

    assert isinstance(rig, Rig)
    start, count = chance.randrange(0, 400), chance.randrange(1, 12)
    action = chance.random()
    if action < 0.4:
        rig.store(start, start + count, tenant=chance.randrange(3))
    elif action < 0.8:
        ticket = rig.load(start, start + count, seconds=0.5, prefetch=chance.random() < 0.3)
        if chance.random() < 0.7:
            rig.check(start, start + ticket.wait(5).ready)
        if chance.random() < 0.9:
            ticket.release()
    elif action < 0.9:
        rig.tiers.pin(rig.tiers.match(SPACE, keys(start, start + count)), chance.random() * 0.2)
    elif action < 0.97:
        reservation = rig.tiers.reserve(SPACE, pages(start, start + count))
        rig.tiers.commit(reservation, [False] * len(reservation.slots))
    elif action < 0.995:
        rig.tiers.clear(chance.choice([None, Tier.HOST, Tier.SSD]), tenant=chance.randrange(3))
    else:
        rig.tiers.clear()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
