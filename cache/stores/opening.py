"""From a path or URL to a store. A new kind of store is one line here.

A kind's package has two functions: `open_store(address, settings)` and `open_maintenance(address)`. It is
imported when it is used, so that what it needs is asked for by those alone who use it.
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol, cast

from cache.errors import SettingsError
from cache.maintenance import Maintenance
from cache.stores.address import Address, parse
from cache.stores.base import Settings, SharedStore

KINDS: Mapping[str, str] = MappingProxyType({})
"""URL scheme → the package of its kind; no scheme: a path."""


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
    try:
        package = KINDS[address.scheme]
    except KeyError:
        known = ", ".join(f"{scheme}://" for scheme in sorted(KINDS) if scheme)
        raise SettingsError(
            f"{address.scheme}:// names no kind of store: use a path or one of {known}"
        ) from None
    return cast(Kind, importlib.import_module(package))
