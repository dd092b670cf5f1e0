"""A real mount of another folder, that can be slowed, hung and broken: `python passthrough.py SOURCE TARGET`.

Lines on stdin: "delay SECONDS" before each answer, "width N" such delays at a time, "fail ERRNO" in place of
an answer (0: none), "hang", "go".
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mfusepy


class Passthrough(mfusepy.Operations):  # type: ignore[misc]
    use_ns = True

    def __init__(self, source: str) -> None:
        self.source = source
        self.delay = 0.0
        self.places = threading.Semaphore(1000)
        self.error = 0
        self.works = threading.Event()
        self.works.set()

    def obey(self) -> None:
        """Do what stdin says, and say when it is done."""
        for line in sys.stdin:
            what, _, value = line.strip().partition(" ")
            if what == "delay":
                self.delay = float(value)
            elif what == "width":
                self.places = threading.Semaphore(int(value))
            elif what == "fail":
                self.error = int(value)
            else:
                (self.works.set if what == "go" else self.works.clear)()
            print("done", flush=True)

    def under(self, path: str) -> str:
        self.works.wait()
        if self.delay:
            with self.places:
                time.sleep(self.delay)
        if self.error:
            raise mfusepy.FuseOSError(self.error)
        return self.source + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        stat = os.lstat(self.under(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino", "st_blocks")
        times = {name: getattr(stat, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
        return {name: getattr(stat, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(entry.name for entry in os.scandir(self.under(path)))]

    def mkdir(self, path: str, mode: int) -> int:
        Path(self.under(path)).mkdir(mode)
        return 0

    def rmdir(self, path: str) -> int:
        Path(self.under(path)).rmdir()
        return 0

    def unlink(self, path: str) -> int:
        Path(self.under(path)).unlink()
        return 0

    def rename(self, old: str, new: str) -> int:
        Path(self.under(old)).rename(self.source + new)
        return 0

    def link(self, target: str, source: str) -> int:
        os.link(self.source + source, self.under(target))
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self.under(path), ns=times) if times else os.utime(self.under(path))
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self.under(path), length)
        return 0

    def open(self, path: str, flags: int) -> int:
        return os.open(self.under(path), flags & ~os.O_DIRECT)

    def create(self, path: str, mode: int, fi: int | None = None) -> int:
        return os.open(self.under(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self.under(path)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self.under(path)
        return os.pwrite(fh, data, offset)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


if __name__ == "__main__":
    operations = Passthrough(sys.argv[1])
    threading.Thread(target=operations.obey, daemon=True).start()
    mfusepy.FUSE(operations, sys.argv[2], foreground=True)
