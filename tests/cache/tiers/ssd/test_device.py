import errno
import os
from pathlib import Path

import pytest

from cache.memory import BLOCK, allocate
from cache.tiers.ssd.device import Device


@pytest.mark.parametrize("direct", [False, True])
def test_what_is_written_is_read(tmp_path: Path, direct: bool) -> None:
    device = Device(tmp_path / "file", direct=direct)
    one, two = allocate(BLOCK), allocate(2 * BLOCK)
    one[:], two[:] = b"1" * BLOCK, b"2" * (2 * BLOCK)
    device.write(BLOCK, [one, two])
    into = [allocate(2 * BLOCK), allocate(BLOCK)]
    assert device.read(BLOCK, into) == 3 * BLOCK
    assert bytes(into[0]) + bytes(into[1]) == b"1" * BLOCK + b"2" * (2 * BLOCK)
    assert device.read(3 * BLOCK, [allocate(2 * BLOCK)]) == BLOCK
    device.close()


def test_a_file_system_without_direct_io_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct I/O here")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    device = Device(tmp_path / "file", direct=True)
    assert not device.direct
    device.write(0, [b"crooked"])
    device.close()


def test_a_short_write_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(tmp_path / "file")
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: 3)
    with pytest.raises(OSError, match="only 3 of 7 bytes") as caught:
        device.write(0, [b"1234567"])
    assert caught.value.errno == errno.ENOSPC
    device.close()


def test_space_is_taken_and_given_back(tmp_path: Path) -> None:
    device = Device(tmp_path / "file")
    device.reserve(0, 64 * BLOCK)
    full = device.backed()
    assert (device.size(), full >= 64 * BLOCK) == (64 * BLOCK, True)
    assert device.punch(0, 32 * BLOCK)
    assert device.backed() <= full - 32 * BLOCK
    assert device.size() == 64 * BLOCK
    device.close()


def test_punching_nonsense_raises(tmp_path: Path) -> None:
    device = Device(tmp_path / "file")
    with pytest.raises(OSError, match="Invalid"):
        device.punch(0, -1)
    device.close()
