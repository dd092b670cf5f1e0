"""`ssd`: pages in one large file of aligned slots on a local file system."""

from cache.tiers.ssd.folder import Limits
from cache.tiers.ssd.store import Ssd

__all__ = ["Limits", "Ssd"]
