"""What vLLM's offloading connector is made from: sizes, a manager, a worker, metrics."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from cache.hierarchy import Hierarchy
from cache.memory import padded
from cache.sizes import format_size
from cache.tiers.host import Host
from engine_adapters import metrics
from engine_adapters.errors import SettingsError
from engine_adapters.levels import open_levels, shared_of
from engine_adapters.outside import Outside
from engine_adapters.prefills import CPU_PRIORS
from engine_adapters.settings import Settings

from . import identity, shm
from .agent import VllmInside, events_of
from .manager import Manager
from .namespaces import Namespaces
from .prompts import Hasher
from .region import Region

END_SECONDS = 3.0
"""For the last writes, where vLLM isn't told to wait for anything: it kills its processes after some 5 s."""

logger = init_logger("vllm.hpkv")  # under vLLM's own name, whose level and handler it shares


class HpkvSpec(OffloadingSpec):
    """One page is a chunk of vLLM's: the same blocks of all ranks, side by side in one row of host memory."""

    @classmethod
    def build_metric_definitions(cls, extra_config: Mapping[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Ours, beside those of vLLM's connector."""
        definitions: dict[str, OffloadingMetricMetadata] = {}
        for name, (text, labels) in metrics.COUNTERS.items():
            definitions[name] = OffloadingCounterMetadata(text, labels)
        for name, (text, labels) in metrics.GAUGES.items():
            definitions[name] = OffloadingGaugeMetadata(text, labels)
        for name, text in metrics.HISTOGRAMS.items():
            definitions[name] = OffloadingHistogramMetadata(text, ("tier",), metrics.BUCKETS)
        return definitions

    def __init__(
        self,
        offloading: OffloadingConfig,
        config: VllmConfig,
        caches: KVCacheConfig,
        settings: Settings,
        memory: Path,
    ) -> None:
        """`memory` is a file that remembers what weights are called. Raises SettingsError."""
        super().__init__(offloading)
        identity.refuse_unserved(config, caches, settings.lasts)
        self.offload_prompt_only = bool(self.extra_config.get("offload_prompt_only", False))
        self.page_tokens = self.tokens_per_block[0] * self.blocks_per_chunk
        self.rank_bytes = offloading.worker_kv_bytes_per_block * self.blocks_per_chunk
        self.page_bytes = self.rank_bytes * offloading.parallel.world_size
        self._vllm = config, caches
        self._settings = settings
        self._memory = memory
        self._pages = self._rows(settings.host)

    def manager(self, workers: Collection[identity.Worker]) -> Manager:
        """The scheduler's side, once the workers have said what they are. Raises SettingsError."""
        region = self._region(rank=None)
        region.drop_name()
        base = identity.base(self._vllm[0], self.page_tokens, workers, self._memory)
        levels = open_levels(self._settings, base, self.page_bytes)
        self._shared = shared_of(levels)
        host = Host(region.memory, padded(self.page_bytes), self.page_bytes)
        priors = CPU_PRIORS if current_platform.is_cpu() else None
        sizes = self.page_tokens, self.page_bytes
        tiers = Hierarchy(self._settings.hierarchy(*sizes, priors=priors), host, levels)
        namespaces = Namespaces(base, lambda path: identity.adapter(path, self._memory))
        meter = metrics.Meter(tiers, self.page_tokens, self.page_bytes)
        logger.info(
            "tiers %s: pages of %d tokens and %s, %d in host; namespace %s of %s",
            self._settings.mode,
            self.page_tokens,
            format_size(self.page_bytes),
            self._pages,
            base.namespace().hex(),
            base,
        )
        seconds = self._settings.load_s, max(self._vllm[0].shutdown_timeout, END_SECONDS)
        self._manager = Manager(tiers, namespaces, meter, self.page_tokens, *seconds)
        return self._manager

    def outside(self) -> Outside:
        """The agent and the registration, once there is a manager. Raises SettingsError."""
        config, caches = self._vllm
        inside = VllmInside(
            self._manager.tiers,
            config,
            self._manager.namespaces,
            Hasher(config.cache_config.prefix_caching_hash_algo, self.tokens_per_hash, self.page_tokens),
            self._shared,
            caches.num_blocks * self.page_bytes // self.blocks_per_chunk,
        )
        rank = config.parallel_config.data_parallel_index
        return Outside(self._settings, inside, rank, events_of(config), logger)

    def get_manager(self) -> Manager:
        """As `manager` made it."""
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker's side: vLLM's own where there is a device. Raises SettingsError."""
        shm.remove_abandoned()
        region = self._region(self.config.parallel.rank)
        try:
            if current_platform.is_cpu():
                from .worker import CpuWorker

                return CpuWorker(kv_caches, region, self.blocks_per_chunk)
            from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

            return CPUOffloadingWorker(kv_caches, self.blocks_per_chunk, self._pages, region)
        except BaseException:
            region.cleanup()
            raise

    def _region(self, rank: int | None) -> Region:
        row_bytes = padded(self.page_bytes)
        return Region(self.config.engine_id, self._pages, row_bytes, self.rank_bytes, rank)

    def _rows(self, host: int | None) -> int:
        rows = (host or 0) // padded(self.page_bytes)
        if rows < 2:
            raise SettingsError(
                f"host: {format_size(host or 0)} doesn't hold two pages of {format_size(self.page_bytes)} "
                f"({self.page_tokens} tokens): make it larger"
            )
        return rows
