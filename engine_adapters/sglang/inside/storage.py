"""SGLang's storage backend over our tiers (`--hicache-storage-backend dynamic`)."""

import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from cache.hierarchy import Hierarchy
from cache.keys import Namespace
from cache.stores.base import SharedStore
from engine_adapters.agent.server import Agent
from engine_adapters.answering import answering
from engine_adapters.errors import SettingsError
from engine_adapters.levels import open_levels, shared_of
from engine_adapters.metrics import Meter
from engine_adapters.outside import open_agent, take_place
from engine_adapters.prefills import CPU_PRIORS, Prefills
from engine_adapters.registration import Registration
from engine_adapters.sglang.settings import told_settings

from . import identity, plugin, pool
from .agent import SglangInside
from .carrier import Carrier
from .desk import Desk
from .exporter import Exporter
from .names import Names
from .shelf import Shelf

logger = logging.getLogger("sglang.srt.hpkv")  # under SGLang's own name, whose level and handler it shares


class HpkvStorage(HiCacheStorage):  # type: ignore[misc]
    """`ssd` and `shared` below SGLang's own host memory.

    SGLang makes one on each rank when it starts, or when it is attached while running.
    """

    current: "HpkvStorage | None" = None
    """The one that is attached in this process: SGLang's hooks are functions, and have nobody to ask."""
    place: Registration | None = None
    """The engine's, at the gateway. It is kept while storage is detached: the engine serves on."""

    def __init__(self, storage_config: Any, kwargs: Mapping[str, Any]) -> None:
        """Takes SGLang's HiCacheStorageConfig. Raises SettingsError."""
        if not plugin.loaded.is_set():
            raise SettingsError(
                "SGLang has not loaded our plugin, without which LoRA's pages would be stored like others: "
                "install this project in SGLang's environment, and name hpkv in SGLANG_PLUGINS if that is set"
            )
        if plugin.reweighted.is_set():
            raise SettingsError(
                "this engine's weights were replaced while it ran, so nobody knows what to call its pages: "
                "start it anew with them"
            )
        self.settings = told_settings(storage_config.extra_config or {}, os.environ)
        self._config = storage_config
        self._shelf: Shelf | None = None
        self._inside: SglangInside | None = None
        self._agent: Agent | None = None
        self._carrier: Carrier | None = None
        self._meter: Meter | None = None
        self._exporter: Exporter | None = None
        self.prefills = Prefills()
        self.desk: Desk | None = None
        """Where prefetches are ordered, on an engine's first rank."""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Open the tiers, now that the size of a page is known. Raises SettingsError."""
        super().register_mem_pool_host(mem_pool_host)
        base = identity.base(self._config, mem_pool_host, _memory(os.environ))
        page_bytes = pool.page_bytes(mem_pool_host)
        levels = open_levels(self.settings, base, page_bytes)
        priors = CPU_PRIORS if identity.on_cpu() else None
        settings = self.settings.hierarchy(base.page_tokens, page_bytes, priors=priors)
        self.names = Names(base.page_tokens)
        self._shelf = Shelf(
            Hierarchy(settings, None, levels),
            base.namespace(),
            self.names,
            page_bytes,
            remote=any(level.store.remote for level in levels),
            load_seconds=self.settings.load_s,
        )
        self._meter = Meter(self.tiers, base.page_tokens, page_bytes, loaded=self._shelf.loaded)
        if identity.has_metrics():
            self._exporter = Exporter(self._meter, identity.labels(self._config))
        self._open_outside(base.namespace(), shared_of(levels))
        HpkvStorage.current = self
        logger.info("tiers %s: namespace %s of %s", self.settings.mode, base.namespace().hex(), base)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """See that there is no other pool. Raises SettingsError for a model that has several."""
        identity.refuse_other_pool(str(getattr(host_pool_name, "value", host_pool_name)))
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def _open_outside(self, namespace: Namespace, shared: SharedStore | None) -> None:
        """On an engine's first rank: the agent, and a place at the gateway."""
        if self._config.tp_rank or self._config.pp_rank:
            return
        self.desk = Desk()
        self._inside = SglangInside(self.tiers, namespace, shared, self.desk)
        rank, first = self._config.dp_rank, identity.events()
        self._agent = open_agent(self.settings, self._inside, rank, logger)
        HpkvStorage.place = take_place(self.settings, self._inside, rank, first, HpkvStorage.place)

    @classmethod
    def leave_gateway(cls) -> None:
        """The engine ends: say so."""
        place, cls.place = cls.place, None
        if place is not None:
            place.close()

    def carrier(self, cache: Any) -> Carrier:
        """What carries prefetches in this rank's scheduler; `cache` is its radix cache."""
        if self._carrier is None:
            self._carrier = Carrier(cache, self.desk)
        return self._carrier

    def heed(self, stop: threading.Event) -> None:
        """From now on, end waits for a store once SGLang wants its threads to end."""
        if self._shelf is not None:
            self._shelf.stopping = stop.is_set

    def touch(self, keys: Sequence[str]) -> None:
        """SGLang uses these pages from its own tiers."""
        if self._shelf is not None:
            self._shelf.touch(keys)

    def retire(self) -> None:
        """Store and load nothing any more: pages' names would lie."""
        if self._shelf is not None:
            self._shelf.retired = True
        if self._inside is not None:
            self._inside.retired = True

    def count_error(self) -> None:
        """A call has failed, and was answered as if nothing were there."""
        if self._meter is not None:
            self._meter.errors += 1

    @property
    def tiers(self) -> Hierarchy:
        """The tiers; once a pool was registered."""
        assert self._shelf is not None
        return self._shelf.tiers

    @answering(logger, 0)
    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """Leading pages that are there and worth loading."""
        return self._shelf.exists(keys) if self._shelf is not None and keys else 0

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Read pages into SGLang's host memory; returns which of them are there."""
        got = self._get(keys, host_indices)
        return [number < got for number in range(len(keys))]

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Write pages down. What a tier refuses is found missing later, and is no failure of SGLang's."""
        self._put(keys, host_indices)
        return [True] * len(keys)

    @answering(logger, 0)
    def _get(self, keys: Sequence[str], host_indices: Any) -> int:
        if self._shelf is None or not keys:
            return 0
        return self._shelf.get(keys, pool.pages(self.mem_pool_host, host_indices))

    @answering(logger, None)
    def _put(self, keys: Sequence[str], host_indices: Any) -> None:
        if self._shelf is not None and keys:
            self._shelf.put(keys, pool.pages(self.mem_pool_host, host_indices))

    def exists(self, key: str) -> bool:
        """Whether one page is there."""
        return self.batch_exists([key]) == 1

    def clear(self) -> None:
        """Forget nothing: SGLang flushes its own caches, and what lies below outlives that."""

    def close(self) -> None:
        """Stop the threads, close the stores. The pages stay for whoever opens them next, and the engine
        stays at the gateway, without an agent."""
        if HpkvStorage.current is self:
            HpkvStorage.current = None
        parts = self._shelf, self._exporter, self.desk, self._carrier, self._agent
        self._agent = self._carrier = self.desk = self._exporter = self._shelf = None
        with contextlib.ExitStack() as ends:  # the last one first, and each whatever another does
            for part in parts:
                if part is not None:
                    ends.callback(part.close)

    # The calls of an older interface, which SGLang doesn't use with `interface_v1`.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        """Nothing: pages are read by `batch_get_v1` alone."""

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[None]:
        """Nothing, for each key."""
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store nothing."""
        return False

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store nothing."""
        return False


def _memory(environ: Mapping[str, str]) -> Path:
    """The file that remembers what weights are called."""
    caches = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(caches) / "hpkv" / "weights.json"
