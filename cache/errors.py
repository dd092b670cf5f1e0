"""What can go wrong at set-up. On the data path nothing raises: reads and writes answer with an `Outcome`.

CacheError
├── SettingsError     a size, number or name that can't work
└── FolderError       a folder or a store's root that can't be used
    ├── ForeignError  it holds something that isn't ours: nothing in it was touched
    ├── VersionError  it was written by another version of the format
    └── BusyError     a living process uses it
"""


class CacheError(Exception):
    """Anything that the cache refuses; the message says what to do."""


class SettingsError(CacheError):
    """A size, number or name that can't work."""


class FolderError(CacheError):
    """A folder, or a store's root, that can't be used."""


class ForeignError(FolderError):
    """The folder holds something that isn't ours; nothing in it was touched."""


class VersionError(FolderError):
    """The folder was written by another version of the format."""


class BusyError(FolderError):
    """A living process uses the folder."""
