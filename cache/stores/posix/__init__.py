"""`posix`: pages as files in a folder of a parallel or network file system."""

from pathlib import Path

from cache.maintenance import Maintenance
from cache.stores.address import Address
from cache.stores.base import Settings, SharedStore
from cache.stores.maintenance import StoreMaintenance
from cache.stores.posix.folder import KIND, PosixShelf, is_store
from cache.stores.posix.store import Posix
from cache.stores.root import load

__all__ = ["Posix", "is_store", "open_maintenance", "open_store"]


def open_store(address: Address, settings: Settings) -> SharedStore:
    """A store in a folder, made if it isn't there."""
    return Posix(Path(address.allow(()).path), settings)


def open_maintenance(address: Address) -> Maintenance:
    """A store's folder, for the commands."""
    shelf = PosixShelf(Path(address.allow(()).path))
    load(shelf, KIND)
    return StoreMaintenance(shelf, KIND)
