"""One folder, several processes: numbered sub-folders, each locked by one, under one cap.

    FOLDER/hpkv.json      what this is, and its generation
    FOLDER/lock           held for the moments in which sub-folders are taken, grown or given up
    FOLDER/00/lock        held by the process that writes this sub-folder, as long as it lives
    FOLDER/00/pages       slots: a record each
    FOLDER/00/table       what lies in them
    FOLDER/00/used        when each was used last, now and then

A process takes a free sub-folder with pages of its own base, or an empty one, or makes the next. Those of
other bases are left to their next owner until the cap is reached: then they are emptied first.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cache.errors import BusyError, FolderError, ForeignError, SettingsError, VersionError, refusal
from cache.keys import FORMAT
from cache.tiers.ssd.device import Device
from cache.tiers.ssd.table import Owner, Table

MARK = "hpkv.json"
FILES = ("pages", "table", "used")
GRACE_SECONDS = 3600.0
"""How long the sub-folder of a process that ended keeps its share, for its restart to find it."""

_LOCK_SECONDS = 30.0
"""Nobody needs the folder's lock for longer, but one that is stopped or whose disk hangs."""

_NUMBERED = re.compile(r"\d{2,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of the disk a folder may take, over all processes that use it."""

    cap: int
    """Physical bytes, overheads included."""
    free_floor: int = 1 << 30
    """Bytes that stay free on the file system, whoever uses them up."""

    def __post_init__(self) -> None:
        if self.cap <= 0 or self.free_floor < 0:
            raise SettingsError(
                f"ssd: cap {self.cap} and free_floor {self.free_floor} must be sizes in bytes"
            )


@dataclass(frozen=True, slots=True)
class Seat:
    """A locked sub-folder."""

    path: Path
    lock: int

    def ours(self) -> bool:
        """Whether this path still leads to what was locked: a folder can be removed or moved under us."""
        try:
            return os.path.samestat(os.fstat(self.lock), (self.path / "lock").stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Unlock it."""
        _unlock(self.lock)


class Folder:
    """The folder as all processes see it. Methods block and raise FolderError or OSError."""

    def __init__(self, path: Path, generation: int) -> None:
        self.path = path
        self.generation = generation

    @classmethod
    def create(cls, path: Path) -> "Folder":
        """Open a folder, making it if it is missing or empty."""
        with _explained(path):
            path.mkdir(parents=True, exist_ok=True)
            if not (path / MARK).exists():
                _refuse_strangers(path)
            with cls(path, 0).locked():
                if not (path / MARK).exists():
                    _write_mark(path, secrets.randbits(63))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Folder":
        """Open an existing folder; changes nothing."""
        with _explained(path):
            if not path.is_dir():
                raise FolderError(f"{path} isn't a folder" if path.exists() else f"{path} doesn't exist")
            if not (path / MARK).exists():
                raise ForeignError(f"{path} has no {MARK}: it isn't a cache folder")
            return cls(path, read_mark(path))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from taking, growing or giving up sub-folders meanwhile."""
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(fd)
            yield
        finally:
            _unlock(fd)

    def _wait_for(self, fd: int) -> None:
        limit = time.monotonic() + _LOCK_SECONDS
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > limit:
                said = "another process holds its lock, and seems to be stopped: end it"
                raise TimeoutError(errno.ETIMEDOUT, said)
            time.sleep(0.005)

    def living(self) -> set[Path]:
        """The sub-folders that processes have now; changes nothing.

        Looking locks for a moment: nobody may look for a free sub-folder just then.
        """
        fd = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            return {path for path in self.seats() if not is_free(path)}
        finally:
            _unlock(fd)

    def seats(self) -> list[Path]:
        """Our sub-folders, in order. A folder that has a number and no lock isn't ours."""
        numbered = (path for path in self.path.iterdir() if _NUMBERED.fullmatch(path.name))
        return sorted(path for path in numbered if (path / "lock").is_file())

    def take(self, owner: Owner) -> Seat:
        """Lock the fullest free sub-folder of this owner, else an empty one, else a new one."""
        with _explained(self.path), self.locked():
            empty: list[Path] = []
            mine: list[Path] = []
            for path in self.seats():
                found = owner_of(path)
                if found is None:
                    empty.append(path)
                elif found == owner:
                    mine.append(path)
            mine.sort(key=physical, reverse=True)
            for path in (*mine, *empty):
                seat = try_seat(path)
                if seat is not None:
                    return seat
            return self._new_seat()

    def bump(self) -> int:
        """A new generation: what was written under the old one is void."""
        with _explained(self.path):
            self.generation = secrets.randbits(63)
            _write_mark(self.path, self.generation)
        return self.generation

    def physical(self) -> int:
        """Bytes of disk space over all sub-folders."""
        return sum(map(physical, self.seats()))

    def free_space(self) -> int:
        """Bytes free on the file system."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def shares(self) -> int:
        """Into how many parts the cap is cut: living processes, and ended ones within their grace."""
        return sum(1 for path in self.seats() if physical(path) and (_fresh(path) or not is_free(path))) or 1

    def raid(self, owner: Owner) -> bool:
        """Empty a sub-folder that nobody uses: first of another base or generation, then past its grace.

        Call with the folder locked. False when there is none.
        """
        free = [path for path in self.seats() if physical(path)]
        foreign = [path for path in free if owner_of(path) != owner]
        stale = [path for path in free if path not in foreign and not _fresh(path)]
        for path in (*foreign, *sorted(stale, key=_last_used)):
            seat = try_seat(path)
            if seat is not None:
                empty(path)
                seat.release()
                return True
        return False

    def _new_seat(self) -> Seat:
        taken = {int(path.name) for path in self.path.iterdir() if _NUMBERED.fullmatch(path.name)}
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        path = self.path / f"{number:02d}"
        path.mkdir(mode=0o700)
        seat = try_seat(path)
        if seat is None:
            raise BusyError(f"{path} was taken by another process; try again")
        return seat


def try_seat(path: Path) -> Seat | None:
    """Lock a sub-folder; None while another process has it."""
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return Seat(path, fd)


def owner_of(seat: Path) -> Owner | None:
    """Whose pages lie in a sub-folder; None when it has none that could be used."""
    if not (seat / "table").exists():
        return None
    table = Table(Device(seat / "table", writable=False))
    try:
        return table.owner()
    finally:
        table.close()


def physical(seat: Path) -> int:
    """Bytes of disk space of a sub-folder's files."""
    size = 0
    for name in FILES:
        with contextlib.suppress(FileNotFoundError):
            size += (seat / name).stat().st_blocks * 512
    return size


def empty(seat: Path) -> None:
    """Delete our files in a sub-folder; its lock stays."""
    for name in FILES:
        (seat / name).unlink(missing_ok=True)


def read_mark(path: Path) -> int:
    """The generation of a folder."""
    try:
        mark = json.loads((path / MARK).read_bytes())
        kind, version, generation = mark["kind"], mark["format"], int(mark["generation"], 16)
        generation.to_bytes(8, "little")  # as records keep it
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ForeignError(
            f"{path / MARK} is damaged or not ours; if the folder is, remove its content"
        ) from error
    if kind != "hpkv-ssd":
        raise ForeignError(f"{path} is a cache of kind {kind!r}, not an ssd folder")
    if version != FORMAT:
        raise VersionError(
            f"{path} was written in format {version}, this is format {FORMAT}: "
            "use that version, or name another folder"
        )
    return generation


def _refuse_strangers(path: Path) -> None:
    ours = ("lock", "lost+found")
    names = sorted(entry.name for entry in path.iterdir())
    strange = [name for name in names if name not in ours and not name.startswith(f".{MARK}.")]
    # The mark is asked for last: another process may be making the folder just now.
    if strange and not (path / MARK).exists():
        raise ForeignError(
            f"{path} holds {strange[0]!r} and no {MARK}: it isn't a cache folder. "
            "Name an empty or a new folder"
        )


def _write_mark(path: Path, generation: int) -> None:
    mark = {"kind": "hpkv-ssd", "format": FORMAT, "generation": f"{generation:016x}"}
    draft = path / f".{MARK}.{secrets.token_hex(4)}"
    draft.write_text(json.dumps(mark) + "\n")
    draft.replace(path / MARK)


def is_free(seat: Path) -> bool:
    """Whether no process has a sub-folder. Call with the folder locked."""
    fd = os.open(seat / "lock", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        _unlock(fd)


def _unlock(fd: int) -> None:
    """Closing alone would leave it locked for as long as a forked child has a copy."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _last_used(seat: Path) -> float:
    return max((path.stat().st_mtime for name in FILES if (path := seat / name).exists()), default=0.0)


def _fresh(seat: Path) -> bool:
    return abs(time.time() - _last_used(seat)) < GRACE_SECONDS


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Say what to do about a file system's refusals."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error) from error
