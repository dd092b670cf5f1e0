from pathlib import Path

import numpy as np
import pytest

from cache.tiers.ssd.device import Device
from cache.tiers.ssd.uses import Uses


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "used"


def test_times_come_back_for_as_many_slots_as_there_are(path: Path) -> None:
    uses = Uses(Device(path))
    uses.write(np.array([3, 0, 2**40], np.uint64))
    uses.reserve(6)
    assert uses.read(3).tolist() == [3, 0, 2**40]
    assert uses.read(5).tolist() == [3, 0, 2**40, 0, 0]
    assert uses.read(2).tolist() == [3, 0]
    uses.clear()
    assert uses.read(2).tolist() == [0, 0]
    uses.write(np.zeros(0, np.uint64))
    assert uses.read(1).tolist() == [0]
    uses.close()


def test_a_damaged_file_is_no_order(path: Path) -> None:
    """One flipped bit would put the clock so far ahead that the next use of a page overflows it."""
    uses = Uses(Device(path))
    uses.write(np.array([3, 7], np.uint64))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        assert uses.read(2).tolist() == [0, 0]
    path.write_bytes(whole[:-1])
    assert uses.read(2).tolist() == [0, 0]
    uses.close()
