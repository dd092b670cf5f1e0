"""`object`: pages as objects in S3, Google Cloud Storage, Azure Blob Storage, or what speaks like them."""

from cache.maintenance import Maintenance
from cache.stores.address import Address
from cache.stores.base import Settings, SharedStore
from cache.stores.maintenance import StoreMaintenance
from cache.stores.object.bucket import KIND, ObjectShelf
from cache.stores.object.connection import connect
from cache.stores.object.store import Object
from cache.stores.root import load

__all__ = ["Object", "open_maintenance", "open_store"]

_PATIENCE_SECONDS = 30.0
"""Commands wait longer for an answer than engines do."""


def open_store(address: Address, settings: Settings) -> SharedStore:
    """A store under a prefix of a bucket, made if nothing is there. The bucket must be."""
    shelf = ObjectShelf(connect(address, settings.io_seconds, new=True), str(address))
    return Object(shelf, settings)


def open_maintenance(address: Address) -> Maintenance:
    """A store in a bucket, for the commands."""
    shelf = ObjectShelf(connect(address, _PATIENCE_SECONDS, new=False), str(address))
    load(shelf, KIND)
    return StoreMaintenance(shelf, KIND)
