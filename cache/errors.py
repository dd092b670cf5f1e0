"""What can go wrong at set-up. On the data path nothing raises: reads and writes answer with an `Outcome`.

CacheError
├── SettingsError     a size, number or name that can't work
└── FolderError       a folder or a shared store that can't be used
    ├── ForeignError  it holds something that isn't ours: nothing in it was touched
    ├── VersionError  it was written by another version of the format
    └── BusyError     a living process uses it
"""

import errno
from collections.abc import Mapping
from types import MappingProxyType

_ACCESS = ": give this user read and write access"
_REMEDIES: Mapping[int, str] = MappingProxyType(
    {errno.EACCES: _ACCESS, errno.EPERM: _ACCESS, errno.EROFS: ": mount it writable"}
)


class CacheError(Exception):
    """Anything that the cache refuses; the message says what to do."""


class SettingsError(CacheError):
    """A size, number or name that can't work."""


class FolderError(CacheError):
    """A folder, or a shared store, that can't be used."""


class ForeignError(FolderError):
    """The place holds something that isn't ours; nothing in it was touched."""


class VersionError(FolderError):
    """It was written by another version of the format."""


class BusyError(FolderError):
    """A living process uses it."""


def refusal(where: object, error: OSError) -> FolderError:
    """What a file system refused there, and what to do about it."""
    why = error.strerror or str(error)
    named = f" ({error.filename})" if error.filename and str(error.filename) != str(where) else ""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return FolderError(f"{where} can't be used: {why}{remedy}{named}")
