"""Records as files: each read and written with one call, past the page cache where the file system can.

Paths are strings here: making a `Path` costs as much as a call.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from cache.keys import Namespace, Page
from cache.memory import Parts, aligned, allocate, gather, padded, scatter
from cache.record import HEADER_BYTES, Stamp, Verdict, check, seal
from cache.stores.posix.folder import draft_of
from cache.stores.root import NAME

_MODE = 0o660
_FOLDER_MODE = 0o770


class Files:
    """Reads and writes records; blocks, raises OSError, and may be called from many threads."""

    def __init__(self, folder: Path, page_bytes: int) -> None:
        self._folder = str(folder)
        self._page_bytes = page_bytes
        self._direct = getattr(os, "O_DIRECT", 0)
        self._buffers = threading.local()

    @property
    def record_bytes(self) -> int:
        """A record's size: header and payload, padded."""
        return HEADER_BYTES + padded(self._page_bytes)

    def has(self, name: str) -> bool:
        """Whether a record is there."""
        try:
            os.stat(f"{self._folder}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def freshen(self, name: str) -> None:
        """A record was used now, by the file server's clock."""
        os.utime(f"{self._folder}/{name}")

    def unlink(self, name: str) -> None:
        """Remove a record, if it is there."""
        _unlink(f"{self._folder}/{name}")

    def read(self, name: str, namespace: Namespace, key: bytes, into: Parts, generation: int) -> Verdict:
        """Read a record's payload into the parts, and say whether it is the page that was asked for."""
        header, bounce = self._own_buffers()
        fd = self._open(f"{self._folder}/{name}", os.O_RDONLY)
        try:
            straight = not self._direct or aligned(into)
            if not _fill(
                fd, [header, *into] if straight else [header, bounce], HEADER_BYTES + self._page_bytes
            ):
                return Verdict.LENGTH
        finally:
            os.close(fd)
        if not straight:
            scatter(bounce, into)
        return check(header, into, namespace, key, generation)

    def write(self, name: str, namespace: Namespace, page: Page, parts: Parts, stamp: Stamp) -> None:
        """Write a page's record under another name, then rename it: nobody ever sees a part of it."""
        header, bounce = self._own_buffers()
        seal(header, namespace, page, parts, stamp)
        path = f"{self._folder}/{name}"
        draft = draft_of(path)
        fd = self._create(draft)
        try:
            try:
                if not self._direct or aligned(parts):
                    _put(fd, [header, *parts])
                else:
                    gather(parts, bounce)
                    _put(fd, [header, bounce])
            finally:
                os.close(fd)
            os.rename(draft, path)
        except OSError:
            _unlink(draft)
            raise

    def _create(self, draft: str) -> int:
        """Open a new file, making the folders it lies in, should a collector take them away again."""
        for _ in range(4):
            try:
                return self._open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileNotFoundError:
                os.stat(f"{self._folder}/{NAME}")  # an empty mount point must stay empty
                for folder in reversed(Path(draft).parents[:3]):
                    folder.mkdir(_FOLDER_MODE, exist_ok=True)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), draft)

    def _open(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags | os.O_CLOEXEC | self._direct, _MODE)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise
            self._direct = 0  # this file system can't
            return self._open(path, flags & ~os.O_EXCL)

    def _own_buffers(self) -> tuple[memoryview, memoryview]:
        """This thread's header block and bounce buffer."""
        try:
            return self._buffers.header, self._buffers.bounce
        except AttributeError:
            self._buffers.header = allocate(HEADER_BYTES)
            self._buffers.bounce = allocate(padded(self._page_bytes))
            return self._buffers.header, self._buffers.bounce


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _fill(fd: int, buffers: Sequence[memoryview], least: int) -> bool:
    """Fill the buffers with the file, `least` bytes of it at least; False if it is shorter.

    A network file system may give less at once than there is.
    """
    got = os.preadv(fd, buffers, 0)
    while got < least:
        more = os.preadv(fd, _from(buffers, got), got)
        if not more:
            return False
        got += more
    return True


def _put(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write the buffers to a new file."""
    done, wanted = os.pwritev(fd, buffers, 0), sum(buffer.nbytes for buffer in buffers)
    while done < wanted:
        done += os.pwritev(fd, _from(buffers, done), done)


def _from(buffers: Sequence[memoryview], skip: int) -> list[memoryview]:
    """What is left of the buffers after their first bytes."""
    left = []
    for buffer in buffers:
        if skip < buffer.nbytes:
            left.append(buffer[skip:])
        skip = max(skip - buffer.nbytes, 0)
    return left
