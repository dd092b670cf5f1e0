"""A device whose disk can be made to fail, fill up or hang."""

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from cache.tiers.ssd.device import Device


class Disk:
    """The switches of all devices it opens."""

    def __init__(self) -> None:
        self.read_error: int | None = None
        self.write_error: int | None = None
        self.works = threading.Event()
        self.works.set()
        self.slow_seconds = 0.0
        self._hanging = 0
        self._counting = threading.Lock()

    @property
    def hanging(self) -> int:
        """Calls that wait for the disk to work again."""
        return self._hanging

    def open(self, path: Path, direct: bool) -> Device:
        return _Faulty(self, path, direct)

    def access(self, error: int | None) -> None:
        if not self.works.is_set():
            self._count(1)
            self.works.wait()
            self._count(-1)
        if self.slow_seconds:
            threading.Event().wait(self.slow_seconds)
        if error is not None:
            raise OSError(error, os.strerror(error))

    def _count(self, by: int) -> None:
        with self._counting:
            self._hanging += by


class _Faulty(Device):
    def __init__(self, disk: Disk, path: Path, direct: bool) -> None:
        self._disk = disk
        super().__init__(path, direct)

    def read(self, offset: int, buffers: Sequence[memoryview]) -> int:
        self._disk.access(self._disk.read_error)
        return super().read(offset, buffers)

    def write(self, offset: int, buffers: Sequence[memoryview | bytes]) -> None:
        error = self._disk.write_error
        if error == errno.ENOSPC and self.direct:  # half of it still fits
            half = memoryview(buffers[-1])
            super().write(offset, [*buffers[:-1], half[: half.nbytes // 2 // 4096 * 4096]])
        self._disk.access(error)
        super().write(offset, buffers)

    def reserve(self, offset: int, size: int) -> None:
        self._disk.access(self._disk.write_error)
        super().reserve(offset, size)
