"""`mooncake`: pages in the memory that Mooncake Store's clients lend, over TCP or RDMA."""

from cache.errors import CacheError
from cache.maintenance import Maintenance
from cache.stores.address import Address
from cache.stores.base import Settings, SharedStore
from cache.stores.mooncake.client import connect, part
from cache.stores.mooncake.maintenance import MooncakeMaintenance
from cache.stores.mooncake.options import Options
from cache.stores.mooncake.shelf import KIND, MooncakeShelf
from cache.stores.mooncake.store import Mooncake
from cache.stores.root import load

__all__ = ["Mooncake", "open_maintenance", "open_store"]


def open_store(address: Address, settings: Settings) -> SharedStore:
    """A client of a Mooncake master, lending its segment."""
    options = Options.parse(address)
    client = connect(options)
    try:
        return Mooncake(client, options, settings)
    except CacheError:
        part(client, options)
        raise


def open_maintenance(address: Address) -> Maintenance:
    """A client that lends nothing, for the commands."""
    options = Options.parse(address)._replace(segment=0)
    shelf = MooncakeShelf(connect(options), options)
    load(shelf, KIND)
    return MooncakeMaintenance(shelf, KIND)
