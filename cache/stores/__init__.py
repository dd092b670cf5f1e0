"""The `shared` tier: stores that many engines on many machines use at once."""

from cache.stores.base import Limits, Settings, SharedStore
from cache.stores.opening import open_maintenance, open_store

__all__ = ["Limits", "Settings", "SharedStore", "open_maintenance", "open_store"]
