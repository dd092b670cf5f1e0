"""The `posix` store: a file for each page, in a folder that many machines mount."""

import contextlib
import errno
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cache.keys import Namespace
from cache.record import Stamp, Verdict
from cache.stores.base import Settings
from cache.stores.guard import Call, Unavailable
from cache.stores.names import name_of
from cache.stores.parallel import Hands
from cache.stores.posix.files import Files
from cache.stores.posix.folder import KIND, NO_SPACE, PosixShelf, make_folder
from cache.stores.presence import Hint
from cache.stores.store import RecordStore, Saved
from cache.tiers.base import Hold, Outcome, Read, Write

logger = logging.getLogger(__name__)

_LOOKERS = 16
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
"""Removed, also by another machine while it was open here."""
_NOTED_SECONDS = 600.0
"""How long a page that was noted as used needn't be again."""
_NOTED = 65536
_NOTES_AT_ONCE = 1000


class Posix(RecordStore):
    """Pages in a folder (see `cache.stores.posix.folder`)."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Open a store, making it if it is new. Raises FolderError when the folder can't be used."""
        make_folder(folder)
        super().__init__(
            PosixShelf(folder), settings, KIND, hanging=settings.io_seconds, at_once=settings.streams
        )
        self._files = Files(folder, settings.page_bytes)
        self._hands = Hands("hpkv-posix-look", _LOOKERS)
        self._sequence = itertools.count(1)
        self._use = _Use()

    def look(  # noqa: D102
        self, generation: int, namespace: Namespace, keys: Sequence[bytes], deadline: float
    ) -> Sequence[Hint]:
        names = [name_of(generation, namespace, key) for key in keys]
        answers = [Hint.UNKNOWN] * len(names)

        def ask(start: int) -> None:
            try:
                with self.guard.call(Call.LOOK):
                    for at in range(start, len(names), _LOOKERS):
                        answers[at] = Hint.THERE if self._files.has(names[at]) else Hint.GONE
            except Unavailable:
                return
            except OSError as error:
                self._failed("looking into", error)

        count = min(_LOOKERS, len(names))
        self._hands.run([functools.partial(ask, start) for start in range(count)], deadline)
        return tuple(answers)

    def fetch(self, generation: int, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:  # noqa: D102
        return [self._fetch(generation, namespace, read) for read in reads]

    def save(self, generation: int, namespace: Namespace, writes: Sequence[Write]) -> list[Saved]:  # noqa: D102
        return [self._save(generation, namespace, write) for write in writes]

    def record_bytes(self) -> int:  # noqa: D102
        return self._files.record_bytes

    def touch(self, namespace: Namespace, keys: Sequence[bytes], used: int) -> None:
        """Remember that the pages were used: `tend` tells the file system, now and then."""
        generation = self._root.generation
        self._use.add([name_of(generation, namespace, key) for key in keys])

    def hold(self, namespace: Namespace, keys: Sequence[bytes]) -> Hold:
        """Nothing is kept from other machines; but what is used now goes last."""
        self.touch(namespace, keys, 0)
        return _NoHold()

    def newest(self) -> int:
        """It has no logical times."""
        return 0

    def tend(self) -> None:
        """Also: tell the file system which pages were used."""
        super().tend()
        for name in self._use.take():
            try:
                with self.guard.call(Call.WRITE):
                    self._files.freshen(name)
            except Unavailable:
                return
            except OSError as error:
                if error.errno not in (*_GONE, *_READ_ONLY):
                    self._failed("noting a use in", error)
                    return

    def close(self) -> None:  # noqa: D102
        self._hands.close()

    def _fetch(self, generation: int, namespace: Namespace, read: Read) -> Outcome:
        name = name_of(generation, namespace, read.key)
        try:
            with self.guard.call(Call.READ):
                verdict = self._files.read(name, namespace, read.key, read.into, generation)
                if verdict is not Verdict.WHOLE:
                    with contextlib.suppress(OSError):  # whoever may only read leaves it to others
                        self._files.unlink(name)
        except Unavailable:
            return Outcome.FAILED
        except OSError as error:
            return Outcome.MISSING if error.errno in _GONE else self._failed("reading from", error)
        self.guard.fine()
        self._use.add([name])
        return Outcome.DONE if verdict is Verdict.WHOLE else Outcome.DAMAGED

    def _save(self, generation: int, namespace: Namespace, write: Write) -> Saved:
        name = name_of(generation, namespace, write.page.key)
        stamp = Stamp(generation, next(self._sequence), int(time.time()))
        try:
            with self.guard.call(Call.WRITE):
                new = not self._files.has(name)
                if new:
                    self._files.write(name, namespace, write.page, write.parts, stamp)
        except Unavailable:
            return Saved(Outcome.DROPPED, False)
        except OSError as error:
            if error.errno in NO_SPACE:
                return Saved(Outcome.FULL, False)
            if error.errno in _READ_ONLY:
                return self._unwritable(os.strerror(error.errno))
            return Saved(self._failed("writing to", error), False)
        self.guard.fine()
        return Saved(Outcome.DONE, new)

    def _failed(self, doing: str, error: OSError) -> Outcome:
        logger.warning("%s %s failed: %s", doing, self.shelf.where, error.strerror)
        self.guard.fault()
        return Outcome.FAILED


class _NoHold(Hold):
    def drop(self) -> None:
        """Nothing was held."""


class _Use:
    """Which pages were used and aren't noted as such yet. Bounded: what is too much is forgotten."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}
        self._noted: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, names: Sequence[str]) -> None:
        now = time.monotonic()
        with self._lock:
            for name in names:
                if self._noted.get(name, now) <= now and len(self._waiting) < _NOTED:
                    self._waiting[name] = None

    def take(self) -> list[str]:
        """Some of them, from now on noted."""
        until = time.monotonic() + _NOTED_SECONDS
        with self._lock:
            names = list(itertools.islice(self._waiting, _NOTES_AT_ONCE))
            if len(self._noted) > _NOTED:
                self._noted.clear()
            for name in names:
                del self._waiting[name]
                self._noted[name] = until
        return names
