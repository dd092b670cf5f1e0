"""One folder: what is refused, and several processes under one cap."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache.errors import FolderError, ForeignError, SettingsError, VersionError
from cache.keys import Base
from cache.record import Verdict
from cache.testing import BASE, PAGE_BYTES, SPACE, content, key, page
from cache.tiers.base import Outcome, Write
from cache.tiers.ssd import Limits, Ssd
from cache.tiers.ssd.folder import GRACE_SECONDS, Folder
from cache.tiers.ssd.maintenance import SsdMaintenance

OTHER = Base(
    weights="ffff", kv_dtype="b", kv_layout="l", attention_backend="a", page_tokens=16, engine="test"
)


def make(folder: Path, cap: int = 1 << 20, base: Base = BASE, floor: int = 0) -> Ssd:
    return Ssd(folder, base.fingerprint, PAGE_BYTES, Limits(cap=cap, free_floor=floor))


def fill(store: Ssd, base: Base = BASE, first: int = 0, count: int = 120) -> list[Outcome]:
    writes = [Write(page(n), [content(n % 16)], n + 1) for n in range(first, first + count)]
    return list(store.write(base.namespace(), writes))


def physical(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def test_a_folder_with_foreign_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ForeignError, match=r"thesis\.tex.*Name an empty or a new folder"):
        make(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_processes_that_make_a_folder_together_do_not_refuse_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "f"
    stores: list[Ssd] = []
    iterdir = Path.iterdir

    def another_is_faster(path: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", iterdir)
        stores.append(make(folder))
        return path.iterdir()

    monkeypatch.setattr(Path, "iterdir", another_is_faster)
    stores.append(make(folder))
    assert [store._seat.path.name for store in stores] == ["00", "01"]
    for store in stores:
        store.close()


def test_another_versions_folder_is_left_alone(tmp_path: Path) -> None:
    store = make(tmp_path / "f")
    store.close()
    mark = tmp_path / "f" / "hpkv.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"format": 99}))
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    with pytest.raises(VersionError, match="format 99, this is format 1"):
        make(tmp_path / "f")
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        *(
            f'{{"kind": "hpkv-ssd", "format": 1, "generation": {generation}}}'
            for generation in ("7", '"-5"', '"10000000000000000"')
        ),
    ],
)
def test_a_damaged_mark_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "hpkv.json").write_text(text)
    with pytest.raises(ForeignError, match="damaged or not ours"):
        make(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(FolderError, match="can't be used"):
        make(tmp_path / "f")


def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir(mode=0o500)
    code = (
        "import os; from pathlib import Path; from cache.errors import FolderError\n"
        "from cache.tiers.ssd.folder import Folder\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        f"try: Folder.create(Path({str(folder)!r}))\n"
        "except FolderError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "give this user read and write access" in said.stdout


def test_two_stores_take_two_seats_and_a_restart_finds_its_own(tmp_path: Path) -> None:
    first, second = make(tmp_path / "f"), make(tmp_path / "f")
    assert {first._seat.path.name, second._seat.path.name} == {"00", "01"}
    fill(second, count=10)
    second.close()
    again = make(tmp_path / "f")
    assert again._seat.path.name == "01"
    assert again.find(SPACE, [key(n) for n in range(10)]) == [True] * 10
    first.close()
    again.close()


def test_another_bases_seat_is_left_to_its_owner(tmp_path: Path) -> None:
    first = make(tmp_path / "f")
    fill(first, count=10)
    first.close()
    other = make(tmp_path / "f", base=OTHER)
    assert other._seat.path.name == "01"
    fill(other, OTHER, count=5)
    again = make(tmp_path / "f")
    assert again.find(SPACE, [key(n) for n in range(10)]) == [True] * 10
    other.close()
    again.close()


def test_foreign_pages_count_toward_the_cap_and_go_first(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = make(folder)
    fill(store, count=60)
    store.close()
    other = make(folder, base=OTHER)
    outcomes = fill(other, OTHER, count=60)
    assert set(outcomes) == {Outcome.DONE}
    assert other.usage().evictions == 0
    assert physical(folder) <= (1 << 20) + 16384
    assert not (folder / "00" / "pages").exists()
    other.close()


def test_a_fresh_orphan_keeps_its_share_and_a_stale_one_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    gone, store = make(folder), make(folder)
    fill(gone, count=30)
    gone.close()
    fill(store, count=120)
    assert (folder / "00" / "pages").exists()
    assert store.usage().evictions > 0
    past = time.time() - GRACE_SECONDS - 60
    for path in (folder / "00").iterdir():
        os.utime(path, (past, past))
    store._grow_after = 0.0
    fill(store, first=200, count=60)
    assert not (folder / "00" / "pages").exists()
    store.close()


def test_only_what_nobody_will_miss_is_emptied(tmp_path: Path) -> None:
    gone = make(tmp_path / "f")
    fill(gone, count=10)
    owner = gone._space.owner
    folder = Folder.open(tmp_path / "f")
    assert not folder.raid(owner)
    gone.close()
    assert not folder.raid(owner)
    assert folder.raid(owner._replace(base=OTHER.fingerprint))
    assert not folder.raid(owner._replace(base=OTHER.fingerprint))


def test_a_newcomer_gets_its_share(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    first = make(folder)
    fill(first, count=100)
    whole = physical(folder)
    second = make(folder)
    assert Outcome.FULL in fill(second, count=1)
    first.tend()
    second._grow_after = 0.0
    assert set(fill(second, count=100)) == {Outcome.DONE}
    assert physical(folder) <= (1 << 20) + 16384
    assert physical(folder / "00") < whole * 0.6
    assert second.usage().pages > 25
    first.audit()
    second.audit()
    first.close()
    second.close()


def test_each_process_keeps_to_its_share(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    first, second = make(folder), make(folder)
    fill(first, count=100)
    assert physical(folder / "00") <= (1 << 20) // 2 + 16384
    assert set(fill(second, count=100)) == {Outcome.DONE}
    first.close()
    second.close()


def test_the_free_space_floor_holds(tmp_path: Path) -> None:
    store = make(tmp_path / "f", floor=1 << 60)
    assert set(fill(store, count=3)) == {Outcome.FULL}
    store.close()


def test_pages_are_given_up_when_the_disk_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "f"
    store = make(folder, floor=1000)
    fill(store, count=60)
    before = physical(folder)
    monkeypatch.setattr(Folder, "free_space", lambda self: 1000 - 100_000)
    store.tend()
    assert physical(folder) <= before - 100_000
    monkeypatch.undo()
    store._grow_after = 0.0
    fill(store, first=300, count=30)
    store.audit()
    store.close()


def test_space_that_was_given_back_is_found_again_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = make(folder)
    fill(store, count=60)
    store._shrink(300_000)
    left = store.usage().pages
    store.close()
    small = physical(folder)
    store = make(folder)
    assert store.usage().pages == left
    assert physical(folder) == small
    assert set(fill(store, first=100, count=40)) == {Outcome.DONE}
    assert store.usage().evictions < 25
    store.audit()
    store.close()


def test_clear_reaches_every_process_on_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    first, second = make(folder), make(folder)
    fill(first, count=5)
    fill(second, count=5)
    assert first.clear() == 5
    second.tend()
    assert second.usage().pages == 0
    assert set(fill(second, count=5)) == {Outcome.DONE}
    second.close()
    again = make(folder)
    assert again.find(SPACE, [key(0)]) == [True]
    first.close()
    again.close()


def test_limits_are_checked() -> None:
    with pytest.raises(SettingsError):
        Limits(cap=0)
    with pytest.raises(SettingsError):
        Limits(cap=1, free_floor=-1)


def test_a_lower_cap_keeps_what_fits(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = make(folder, cap=2 << 20)
    fill(store, count=140)
    many = store.usage().pages
    store.close()
    store = make(folder, cap=1 << 20)
    for _ in range(3):
        store.tend()
    assert many // 3 < store.usage().pages < many
    assert physical(folder) <= (1 << 20) + 16384
    assert set(fill(store, first=1000, count=20)) == {Outcome.DONE}
    store.audit()
    store.close()
    left = store.usage().pages
    store = make(folder, cap=2 << 20)
    assert store.usage().pages == left
    assert set(fill(store, first=2000, count=100)) == {Outcome.DONE}
    store.close()
    checked = [one.verdict for one in SsdMaintenance(folder).verify()]
    assert len(checked) > left
    assert set(checked) == {Verdict.WHOLE}


def test_a_cap_that_others_exceed_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    large, small = make(tmp_path / "f", cap=4 << 20), make(tmp_path / "f", cap=512 << 10)
    fill(large, count=400)
    assert caplog.text == ""
    for _ in range(2):
        small._grow_after = 0.0
        assert set(fill(small, count=4)) == {Outcome.FULL}
    assert caplog.text.count("Give all of them the same cap") == 1
    large.close()
    small.close()


def test_a_folder_that_is_removed_under_a_process_holds_no_space(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = make(folder)
    fill(store, count=30)
    shutil.rmtree(folder)
    store.tend()
    assert store.usage().pages == 0
    assert store._files.pages.backed() == 0
    other = make(folder)
    store.tend()
    store._grow_after = 0.0
    assert set(fill(store, count=5)) == {Outcome.FULL}
    assert set(fill(other, count=5)) == {Outcome.DONE}
    store.close()
    other.close()


def test_a_removed_folder_takes_nothing_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also not into the slots that it had grown by and not used yet. What is held goes when it is let go."""
    folder = tmp_path / "f"
    store = make(folder, cap=16 << 20)
    fill(store, count=5)
    assert store._space.slots > 5
    kept = store.hold(SPACE, [key(0)])
    shutil.rmtree(folder)
    for first in (100, 200):
        store.tend()
        assert store.usage().pages == 1
        assert set(fill(store, first=first, count=5)) == {Outcome.FULL}
    kept.drop()
    store.tend()
    assert store._files.pages.backed() == 0
    assert caplog.text.count("was removed or moved") == 1
    store.audit()
    store.close()


def test_a_folder_that_is_moved_and_moved_back_is_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make(tmp_path / "f", cap=16 << 20)
    fill(store, count=5)
    for first in (100, 200):
        (tmp_path / "f").rename(tmp_path / "g")
        store.tend()
        assert set(fill(store, first=first, count=5)) == {Outcome.FULL}
        (tmp_path / "g").rename(tmp_path / "f")
        store.tend()
        store._grow_after = 0.0
        assert set(fill(store, first=first, count=5)) == {Outcome.DONE}
        assert store.usage().pages == 5
    assert caplog.text.count("was removed or moved") == 2
    store.audit()
    store.close()
    assert {one.verdict for one in SsdMaintenance(tmp_path / "f").verify()} == {Verdict.WHOLE}


def test_upkeep_that_fails_is_told_now_and_then(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such as on a file system that turned read-only: it is tried each second."""
    store = make(tmp_path / "f")
    (tmp_path / "f/hpkv.json").unlink()
    for _ in range(3):
        store.tend()
    assert caplog.text.count("upkeep of") == 1
    store.close()


def test_unused_space_is_given_back_before_any_page_goes(tmp_path: Path) -> None:
    store = make(tmp_path / "f", cap=16 << 20)
    fill(store, count=5)
    unused = store._space.slots - 5
    assert unused > 0
    with store._growing:
        store._shrink(unused * store._slot)
    assert store.usage().pages == 5
    assert store._files.pages.backed() == 5 * store._slot
    assert set(fill(store, first=100, count=5)) == {Outcome.DONE}
    store.audit()
    store.close()


def test_a_tenants_evicted_pages_do_not_come_back_after_a_clear(tmp_path: Path) -> None:
    """An evicted page's entry stays until its slot is used again."""
    store = make(tmp_path / "f")
    store.write(SPACE, [Write(page(n, tenant=7), [content(n)], n) for n in range(4)])
    store._evict()
    assert store.clear(tenant=7) == 3
    store.close()
    store = make(tmp_path / "f")
    assert store.usage().pages == 0
    store.close()


def test_a_late_call_does_not_reach_another_file(tmp_path: Path) -> None:
    store = make(tmp_path / "f")
    fill(store, count=3)
    store.close()
    other = tmp_path / "other"
    other.write_bytes(bytes(10_000))
    descriptors = [os.open(other, os.O_RDWR) for _ in range(8)]
    with pytest.raises(FolderError, match="can't be cleared"):
        store.clear()
    assert other.read_bytes() == bytes(10_000)
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_lock_that_nobody_gives_back_is_not_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache.tiers.ssd.folder._LOCK_SECONDS", 0.05)
    store = make(tmp_path / "f")
    with Folder.open(tmp_path / "f").locked():
        with pytest.raises(FolderError, match="seems to be stopped: end it"):
            make(tmp_path / "f")
        assert set(fill(store, count=2)) == {Outcome.FULL}
        store.tend()
    store._grow_after = 0.0
    assert set(fill(store, count=2)) == {Outcome.DONE}
    store.close()


def test_a_forked_child_keeps_no_locks(tmp_path: Path) -> None:
    """It has copies of the descriptors, also of those that another thread had open just then."""
    store = make(tmp_path / "f")
    fill(store, count=5)
    with Folder.open(tmp_path / "f").locked():
        locks = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if tmp_path in fd.resolve().parents]
        child = subprocess.Popen(["sleep", "60"], pass_fds=locks)
    try:
        store.close()
        again = make(tmp_path / "f")
        assert again.usage().pages == 5
        again.close()
    finally:
        child.kill()
        child.wait()
