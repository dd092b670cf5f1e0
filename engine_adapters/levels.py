"""The stores below `host`, opened as an engine's settings say."""

from collections.abc import Callable, Sequence
from pathlib import Path

from cache.errors import CacheError, refusal
from cache.keys import Base
from cache.state import Level
from cache.stores import base as stores
from cache.stores.base import SharedStore
from cache.stores.opening import open_store
from cache.tiers.base import Store
from cache.tiers.ssd import Ssd
from cache.tiers.ssd.folder import Folder

from .errors import SettingsError
from .settings import Settings, SharedSettings


def check_folder(path: Path) -> None:
    """See that a folder of `ssd` is there, or can be made, and can be written. Raises SettingsError."""
    try:
        with Folder.create(path).locked():
            pass
    except CacheError as error:
        raise SettingsError(f"ssd: {error}") from error
    except OSError as error:
        raise SettingsError(f"ssd: {refusal(str(path), error)}") from error


def open_levels(settings: Settings, base: Base, page_bytes: int) -> list[Level]:
    """Open them, from fast to slow. Raises SettingsError for a store that can't be used."""
    levels: list[Level] = []
    try:
        if settings.ssd is not None:
            ssd = settings.ssd
            store = _opened("ssd", lambda: Ssd(ssd.path, base.fingerprint, page_bytes, ssd.limits()))
            levels.append(Level(store, ssd.admits()))
        if settings.shared is not None:
            shared = settings.shared
            used = _used(shared, settings, page_bytes)
            store = _opened("shared", lambda: open_store(shared.url, used))
            levels.append(Level(store, shared.admits()))
    except SettingsError:
        for level in levels:
            level.store.close()
        raise
    return levels


def shared_of(levels: Sequence[Level]) -> SharedStore | None:
    """The store that several machines share, if there is one among them."""
    return next((level.store for level in levels if isinstance(level.store, SharedStore)), None)


def _used(shared: SharedSettings, settings: Settings, page_bytes: int) -> stores.Settings:
    return stores.Settings(page_bytes=page_bytes, limits=shared.limits(), io_seconds=settings.load_s)


def _opened(name: str, build: Callable[[], Store]) -> Store:
    try:
        return build()
    except CacheError as error:
        raise SettingsError(f"{name}: {error}") from error
