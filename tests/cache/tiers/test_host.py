import pytest

from cache.errors import SettingsError
from cache.memory import allocate
from cache.testing import SPACE, key, page, told
from cache.tiers.base import Change
from cache.tiers.host import Host


def test_pages_lie_in_their_slots() -> None:
    memory = allocate(3 * 8192)
    host = Host(memory, slot_bytes=8192, page_bytes=5000)
    slots = [host.take(SPACE, page(n)) for n in range(3)]
    for slot in slots:
        host.page(slot)[:] = bytes([slot + 1]) * 5000
    assert [memory[slot * 8192] for slot in slots] == [slot + 1 for slot in slots]
    assert memory[slots[0] * 8192 + 5000] == 0
    assert host.usage() == (host.usage().__class__)(0, 3 * 8192, 3 * 8192)


def test_changes_are_told() -> None:
    host, changes = Host(allocate(4096), 1024), list[Change]()
    host.listen(changes.append)
    slots = [host.take(SPACE, page(n)) for n in range(3)]
    host.publish(slots[:2], used=1)
    host.abandon(slots[2:])
    host.remove(host.make_room(3))
    assert [(change.stored, len(change.pages)) for change in changes] == [(True, 2), (False, 1)]
    assert told(changes) == {(1, 16)}
    assert host.book.find(SPACE, [key(0), key(1)]) != [-1, -1]
    host.book.audit()


@pytest.mark.parametrize(
    ("memory", "slot", "size", "says"),
    [
        (memoryview(bytes(4096)), 1024, 1024, "writable"),
        (allocate(4096), 8192, 4096, "no room"),
        (allocate(4096), 1024, 2048, "no room"),
        (allocate(4096), 1024, 0, "no room"),
    ],
)
def test_memory_that_can_not_work_is_refused(memory: memoryview, slot: int, size: int, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        Host(memory, slot, size)
