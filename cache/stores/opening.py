"""From a path or URL to a store. A new kind of store is one line here.

A kind's package has two functions: `open_store(address, settings)` and `open_maintenance(address)`. It is
imported when it is used, so that what it needs is asked for by those alone who use it.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from cache.errors import SettingsError
from cache.maintenance import Maintenance
from cache.stores.address import Address, parse
from cache.stores.base import Settings, SharedStore


class Entry(NamedTuple):
    """Where a kind's code lies."""

    package: str
    needs: str = ""
    """What to install for it, as pip calls it. Not an extra of ours: with that, pip would also bring the
    gateway's dependencies into an engine's environment."""


_OBJECT = Entry("cache.stores.object", "obstore")

KINDS: Mapping[str, Entry] = MappingProxyType(
    {
        "": Entry("cache.stores.posix"),
        "s3": _OBJECT,
        "gs": _OBJECT,
        "az": _OBJECT,
        "file": _OBJECT,
        "mooncake": Entry("cache.stores.mooncake", "mooncake-transfer-engine"),
    }
)
"""URL scheme → its kind; no scheme: a path."""


class Kind(Protocol):
    """What a kind's package offers."""

    def open_store(self, address: Address, settings: Settings) -> SharedStore:
        """Open a store, making it if it is new. Raises CacheError, with what to do."""
        ...

    def open_maintenance(self, address: Address) -> Maintenance:
        """The same store seen from outside; changes nothing. Raises CacheError, with what to do."""
        ...


def open_store(url: str, settings: Settings) -> SharedStore:
    """Open the store that a path or URL names, making it if it is new. Raises CacheError, with what to do."""
    address = parse(url)
    return _kind(address).open_store(address, settings)


def open_maintenance(url: str) -> Maintenance:
    """The store that a path or URL names, for the commands. Raises CacheError, with what to do."""
    address = parse(url)
    return _kind(address).open_maintenance(address)


def _kind(address: Address) -> Kind:
    entry = KINDS.get(address.scheme)
    if entry is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(KINDS) if scheme)
        raise SettingsError(f"{address.scheme}:// names no kind of store: use a path or one of {known}")
    try:
        return cast(Kind, importlib.import_module(entry.package))
    except ModuleNotFoundError as error:
        if not entry.needs:
            raise
        raise SettingsError(
            f"{address.scheme}:// stores need {error.name}, which isn't installed: pip install {entry.needs}"
        ) from error
