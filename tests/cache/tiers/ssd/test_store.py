"""`Ssd` under the contract, and what is its own: restarts, eviction, space."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cache.errors import SettingsError
from cache.memory import BLOCK, allocate
from cache.record import HEADER_BYTES
from cache.testing import BASE, PAGE_BYTES, SPACE, StoreContract, content, key, page, told
from cache.tiers.base import Change, Outcome, Read, Store, Write
from cache.tiers.ssd import Limits, Ssd
from cache.tiers.ssd.records import slot_bytes

SLOT = slot_bytes(PAGE_BYTES)
LIMITS = Limits(cap=4 << 20, free_floor=0)


def make(folder: Path, cap: int = 4 << 20, direct: bool = True, base: bytes = BASE.fingerprint) -> Ssd:
    return Ssd(folder, base, PAGE_BYTES, Limits(cap=cap, free_floor=0), direct=direct)


def slot_of(store: Store, page_key: bytes) -> int:
    assert isinstance(store, Ssd)
    (slot,) = store._book.find(SPACE, [page_key])
    return slot


def put(store: Store, start: int, stop: int, used: int = 1) -> list[Outcome]:
    return list(store.write(SPACE, [Write(page(n), [content(n)], used) for n in range(start, stop)]))


def get(store: Store, number: int) -> Outcome:
    into = allocate(PAGE_BYTES)
    (outcome,) = store.read(SPACE, [Read(key(number), [into])])
    assert outcome is not Outcome.DONE or into == content(number)
    return outcome


def there(store: Store, numbers: range) -> list[int]:
    return [
        n for n, found in zip(numbers, store.find(SPACE, [key(n) for n in numbers]), strict=True) if found
    ]


class TestDirect(StoreContract):
    direct = True

    def open(self, folder: Path) -> Store:
        return make(folder, direct=self.direct)

    def damage(self, store: Store, key: bytes, change: Callable[[bytearray], None]) -> None:
        assert isinstance(store, Ssd)
        with (store._seat.path / "pages").open("r+b") as file:
            file.seek(slot_of(store, key) * SLOT)
            record = bytearray(file.read(SLOT))
            change(record)
            file.seek(slot_of(store, key) * SLOT)
            file.write(record.ljust(SLOT, b"\0"))


class TestThroughThePageCache(TestDirect):
    direct = False


def test_direct_io_is_used_here(tmp_path: Path) -> None:
    store = make(tmp_path / "f")
    assert store._files.pages.direct
    store.close()


def test_a_page_copied_from_another_namespace_is_a_miss(tmp_path: Path) -> None:
    store = make(tmp_path / "f")
    other = BASE.namespace(lora="other")
    put(store, 0, 1)
    store.write(other, [Write(page(0), [content(1)], 1)])
    (source,) = store._book.find(other, [key(0)])
    path = store._seat.path / "pages"
    raw = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(slot_of(store, key(0)) * SLOT)
        file.write(raw[source * SLOT : (source + 1) * SLOT])
    assert get(store, 0) is Outcome.DAMAGED
    assert get(store, 0) is Outcome.MISSING
    store.close()


def test_a_truncated_file_is_a_miss(tmp_path: Path) -> None:
    store = make(tmp_path / "f")
    put(store, 0, 4)
    last = max(range(4), key=lambda n: slot_of(store, key(n)))
    with (store._seat.path / "pages").open("r+b") as file:
        file.truncate(slot_of(store, key(last)) * SLOT + HEADER_BYTES + BLOCK)
    assert get(store, last) is Outcome.DAMAGED
    assert [get(store, n) for n in range(4) if n != last] == [Outcome.DONE] * 3
    store.close()


def test_what_extends_a_prefix_goes_before_it(tmp_path: Path) -> None:
    store = make(tmp_path / "f", cap=1 << 20)
    fit = 0
    while put(store, fit, fit + 1, used=1) == [Outcome.DONE] and store.usage().evictions == 0:
        fit += 1
    assert fit > 40
    put(store, 1000, 1010, used=2)
    assert there(store, range(fit + 1)) == list(range(fit - 10))
    store.close()


def test_touched_pages_outlive_others_across_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = make(folder, cap=1 << 20)
    fit = 0
    while not store.usage().evictions:
        put(store, fit, fit + 1, used=fit + 1)
        fit += 1
    store.touch(SPACE, [key(1), key(2)], used=fit + 10)
    store.close()
    store = make(folder, cap=1 << 20)
    assert store.newest() == fit + 10
    put(store, 1000, 1020, used=fit + 11)
    assert there(store, range(25)) == [1, 2, 23, 24]
    store.close()


def test_held_pages_are_not_evicted(tmp_path: Path) -> None:
    store = make(tmp_path / "f", cap=256 << 10)
    put(store, 0, 5)
    hold = store.hold(SPACE, [key(0), key(3), key(99)])
    put(store, 100, 150, used=2)
    assert there(store, range(5)) == [0, 3]
    hold.drop()
    hold.drop()
    put(store, 200, 250, used=3)
    assert there(store, range(5)) == []
    store.audit()
    store.close()


def test_everything_held_drops_stores(tmp_path: Path) -> None:
    store = make(tmp_path / "f", cap=256 << 10)
    put(store, 0, 40)
    hold = store.hold(SPACE, [key(n) for n in range(40)])
    assert put(store, 100, 101) == [Outcome.FULL]
    hold.drop()
    assert put(store, 100, 101) == [Outcome.DONE]
    store.close()


def test_the_cap_holds_on_the_disk(tmp_path: Path) -> None:
    folder, cap = tmp_path / "f", 1 << 20
    store = make(folder, cap=cap)
    for first in range(0, 300, 20):
        put(store, first, first + 20, used=first)
        assert sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) <= cap + 8192
    assert store.usage().evictions > 200
    assert store._folder.physical() > cap // 2
    store.close()


def test_residency_after_eviction_is_what_was_told(tmp_path: Path) -> None:
    store, changes = make(tmp_path / "f", cap=256 << 10), list[Change]()
    store.listen(changes.append)
    for first in range(0, 60, 5):
        put(store, first, first + 5, used=first + 1)
    known = store.residency()
    listed = set(zip(known.prefix_keys.tolist(), known.end_tokens.tolist(), strict=True))
    assert told(changes) == listed
    assert 0 < len(listed) < 60
    store.close()


def test_an_evicted_page_stored_again_is_found_once_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = make(folder, cap=256 << 10)
    for first in (0, 50, 0, 50, 0):
        put(store, first, first + 30, used=first + 1)
    before = set(there(store, range(100)))
    store.close()
    store = make(folder, cap=256 << 10)
    store.audit()
    found = there(store, range(100))
    assert before <= set(found)
    assert [get(store, n) for n in found] == [Outcome.DONE] * len(found)
    store.close()


def test_a_damaged_table_loses_pages_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    store = make(folder)
    put(store, 0, 10)
    table = store._seat.path / "table"
    slot = slot_of(store, key(3))
    store.close()
    with table.open("r+b") as file:
        file.seek(BLOCK + slot * 128 + 20)
        file.write(b"\xff")
    store = make(folder)
    assert there(store, range(10)) == [n for n in range(10) if n != 3]
    store.close()


def test_a_table_that_names_another_slot_is_caught_by_the_record(tmp_path: Path) -> None:
    """What a power failure can leave behind: an entry that reached the disk before its record."""
    folder = tmp_path / "f"
    store = make(folder)
    put(store, 0, 2)
    slots = [slot_of(store, key(n)) for n in range(2)]
    table = store._seat.path / "table"
    store.close()
    raw = bytearray(table.read_bytes())
    at = [BLOCK + slot * 128 for slot in slots]
    raw[at[0] : at[0] + 128], raw[at[1] : at[1] + 128] = raw[at[1] : at[1] + 128], raw[at[0] : at[0] + 128]
    table.write_bytes(raw)
    store = make(folder)
    assert there(store, range(2)) == [0, 1]
    assert [get(store, 0), get(store, 1)] == [Outcome.DAMAGED, Outcome.DAMAGED]
    store.close()


def test_a_cap_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no room for two pages"):
        make(tmp_path / "f", cap=SLOT)


def test_the_clock_going_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used last stays, also over a restart in which the clock is set back by decades."""
    folder = tmp_path / "f"
    store = make(folder, cap=256 << 10)
    put(store, 0, 5, used=1)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    put(store, 100, 108, used=2)
    store.close()
    store = make(folder, cap=256 << 10)
    assert there(store, range(5)) == list(range(5))
    assert there(store, range(100, 108)) == list(range(100, 108))
    fit = 0
    while not store.usage().evictions:
        put(store, 200 + fit, 201 + fit, used=3)
        fit += 1
    put(store, 300, 304, used=4)
    assert there(store, range(5)) == []
    assert there(store, range(100, 108)) == list(range(100, 108))
    assert [get(store, n) for n in (100, 107, 300)] == [Outcome.DONE] * 3
    store.close()


def test_pages_that_are_no_multiple_of_a_block(tmp_path: Path) -> None:
    store = Ssd(tmp_path / "f", BASE.fingerprint, 5000, LIMITS)
    store.write(SPACE, [Write(page(0), [content(0, 5000)], 1)])
    into = allocate(5000)
    assert store.read(SPACE, [Read(key(0), [into])]) == [Outcome.DONE]
    assert into == content(0, 5000)
    store.close()
