"""The calls that touch the disk: one file, read and written in place. Faults are injected here."""

import ctypes
import ctypes.util
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

_KEEP_SIZE = 1
_PUNCH_HOLE = 2

_libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Device:
    """An open file. All methods block, raise OSError, and may be called from many threads."""

    def __init__(self, path: Path, direct: bool = False, writable: bool = True) -> None:
        """Open (and create, if writable). `direct`: past the page cache, where the file system can."""
        flags = os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY)
        self.direct = False
        if direct:
            try:
                self._fd = os.open(path, flags | os.O_DIRECT, 0o600)
                self.direct = True
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        self._fd = os.open(path, flags, 0o600)

    def read(self, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill the buffers from `offset` with one call.

        Fewer bytes than asked for means the file ends there.
        """
        return os.preadv(self._fd, buffers, offset)

    def write(self, offset: int, buffers: Sequence[memoryview | bytes]) -> None:
        """Write all of the buffers at `offset`."""
        wanted = sum(memoryview(buffer).nbytes for buffer in buffers)
        written = os.pwritev(self._fd, buffers, offset)
        if written != wanted:  # the disk filled up in mid-write
            raise OSError(errno.ENOSPC, f"only {written} of {wanted} bytes were written")

    def reserve(self, offset: int, size: int) -> None:
        """Back a range with disk space, so that writing there can't run out of it."""
        os.posix_fallocate(self._fd, offset, size)

    def punch(self, offset: int, size: int) -> bool:
        """Give a range's disk space back; False where the file system can't."""
        if _libc.fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, offset, size) == 0:
            return True
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            return False
        raise OSError(code, os.strerror(code))

    def truncate(self, size: int) -> None:
        """Cut or extend the file."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """Bytes from start to end."""
        return os.fstat(self._fd).st_size

    def backed(self) -> int:
        """Bytes of disk space it takes."""
        return os.fstat(self._fd).st_blocks * 512

    def close(self) -> None:
        """Close it; every call from then on fails."""
        fd, self._fd = self._fd, -1  # a late call must not hit the next file of this number
        os.close(fd)


Opener = Callable[[Path, bool], Device]
"""(path, direct) → an open device."""
