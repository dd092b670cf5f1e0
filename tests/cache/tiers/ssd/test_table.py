from pathlib import Path

import pytest

from cache.keys import KEY_BYTES, Page
from cache.memory import BLOCK
from cache.testing import SPACE, page
from cache.tiers.ssd.device import Device
from cache.tiers.ssd.table import ENTRY_BYTES, Owner, Row, Table

OWNER = Owner(b"b" * 16, 8192, 2**63 - 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table"


def row(slot: int) -> Row:
    return Row(slot, slot + 100, SPACE, page(slot, tenant=2**64 - 1), 2**40 - 1)


def test_rows_are_read_back_in_slot_order(path: Path) -> None:
    table = Table(Device(path))
    table.start(OWNER)
    for slot in (7, 0, 40_000):
        table.write(row(slot))
    assert list(table.rows()) == [row(0), row(7), row(40_000)]
    assert (table.row(7), table.row(8)) == (row(7), None)
    table.clear(7)
    assert list(table.rows()) == [row(0), row(40_000)]
    table.close()


def test_keys_of_all_lengths_come_back_whole(path: Path) -> None:
    table = Table(Device(path))
    table.start(OWNER)
    keys = [b"\0", b"\xff" * KEY_BYTES, b"k\0\0"]
    for slot, key in enumerate(keys):
        table.write(Row(slot, 1, SPACE, Page(key, 2, 3, 4), 5))
    assert [found.page.key for found in table.rows()] == keys
    table.close()


def test_the_owner_is_read_back_and_a_damaged_one_is_nobody(path: Path) -> None:
    table = Table(Device(path))
    assert table.owner() is None
    table.start(OWNER)
    assert table.owner() == OWNER
    table.close()
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    table = Table(Device(path, writable=False))
    assert table.owner() is None
    table.close()


def test_a_damaged_entry_is_passed_over(path: Path) -> None:
    table = Table(Device(path))
    table.start(OWNER)
    for slot in range(3):
        table.write(row(slot))
    with path.open("r+b") as file:
        file.seek(BLOCK + ENTRY_BYTES + 50)
        file.write(b"\xff\xff")
    assert list(table.rows()) == [row(0), row(2)]
    assert table.row(1) is None
    table.close()
