"""A store's folder, for upkeep and the commands.

    FOLDER/hpkv.json               what this is, its id and its generation
    FOLDER/collector.json          who collects
    FOLDER/GENERATION/NAMESPACE/FAN/KEY     a record
    …/.NAME.16 hex digits          what is being written; renamed when it is whole

A record's time of modification is when it was used last.
"""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from cache.errors import refusal
from cache.stores.root import NAME
from cache.stores.shelf import NEW, Blob, Entry, Missing, Shelf

KIND = "hpkv-posix"

_FOLDERS = tuple(re.compile(rf"[0-9a-f]{{{digits}}}") for digits in (16, 32, 2))
"""Generation, namespace, fan."""
_DEPTH = len(_FOLDERS) + 1
_FOREIGN = ("lost+found", ".snapshot", ".zfs")
"""What file systems keep at their roots."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class PosixShelf(Shelf):
    """Things in a folder."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)

    def entries(self) -> Iterator[Entry]:  # noqa: D102
        with self._explained():
            yield from self._walk("", 1)

    def get(self, name: str, size: int | None = None) -> Blob:  # noqa: D102
        with self._explained():
            try:
                file = (Path(self.where) / name).open("rb", buffering=0)
            except FileNotFoundError:
                raise Missing(name) from None
            with file:
                stat = os.fstat(file.fileno())
                return Blob(file.read(size if size is not None else -1) or b"", stat.st_mtime, _version(stat))

    def put(self, name: str, data: bytes, over: str) -> bool:
        """Replacing isn't atomic: of two that replace the same version, the later wins."""
        path = Path(self.where) / name
        with self._explained():
            try:
                draft = self._draft(path, data)
            except OSError as error:
                if over == NEW or error.errno not in NO_SPACE:
                    raise
                return _overwrite(path, data, over)
            try:
                if over == NEW:
                    return _link(draft, path, data)
                if _version(path.stat()) != over:
                    return False
                draft.replace(path)
            except FileNotFoundError:
                return False
            finally:
                draft.unlink(missing_ok=True)
            return True

    def remove(self, names: Sequence[str]) -> list[bool]:  # noqa: D102
        with self._explained():
            return [self._unlink(name) for name in names]

    def now(self) -> float:
        """By the file server's clock, which stamps the files."""
        with self._explained():
            draft = self._draft(Path(self.where) / "now", b"")  # empty: a full store has room for it
            try:
                return draft.stat().st_mtime
            finally:
                draft.unlink(missing_ok=True)

    def tidy(self) -> Iterator[None]:
        """Writers make a folder again if it goes before their eyes."""
        with self._explained():
            yield from self._prune(Path(self.where), _FOLDERS)

    def _prune(self, folder: Path, below: Sequence[re.Pattern[str]]) -> Iterator[None]:
        """Remove a folder's sub-folders of ours that are empty; none of the last level is read for it."""
        with os.scandir(folder) as found:
            ours = [Path(entry.path) for entry in found if below[0].fullmatch(entry.name) and entry.is_dir()]
        for path in ours:
            with contextlib.suppress(OSError):
                if len(below) > 1:
                    yield from self._prune(path, below[1:])
                path.rmdir()
            yield

    def _walk(self, below: str, depth: int) -> Iterator[Entry]:
        try:
            with os.scandir(f"{self.where}/{below}") as found:
                entries = list(found)
        except FileNotFoundError:
            return
        for entry in entries:
            name = below + entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEPTH and name not in _FOREIGN:
                    yield from self._walk(f"{name}/", depth + 1)
                continue
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat(follow_symlinks=False)
                yield Entry(name, stat.st_size, stat.st_mtime)

    def _draft(self, path: Path, data: bytes) -> Path:
        draft = Path(draft_of(str(path)))
        try:
            with draft.open("xb") as file:
                file.write(data)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        return draft

    def _unlink(self, name: str) -> bool:
        try:
            (Path(self.where) / name).unlink()
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with explained(self.where):
            yield


def is_store(folder: Path) -> bool:
    """Whether a folder says that it is such a store."""
    with contextlib.suppress(OSError):
        return KIND.encode() in (folder / NAME).read_bytes()
    return False


def make_folder(folder: Path) -> None:
    """Make a store's folder. Raises FolderError."""
    with explained(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)


def draft_of(path: str) -> str:
    """Where to write what shall become `path`."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{secrets.token_hex(8)}"


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Say what to do about the usual refusals of a file system."""
    try:
        yield
    except OSError as error:
        raise refusal(where, error) from error


def _link(draft: Path, path: Path, data: bytes) -> bool:
    """Make `path` of a draft, unless it is there."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
    return True


def _overwrite(path: Path, data: bytes, over: str) -> bool:
    """Replace a thing where it lies: a full store must be able to collect and to clear.

    Who reads in this very moment may see a part; then it isn't valid, and is read again.
    """
    with path.open("r+b", buffering=0) as file:
        if _version(os.fstat(file.fileno())) != over:
            return False
        file.write(data)
        file.truncate(len(data))
    return True


def _version(stat: os.stat_result) -> str:
    return f"{stat.st_ino}.{stat.st_mtime_ns}.{stat.st_size}"
