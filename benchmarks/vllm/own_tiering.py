"""Contender: vLLM's own tiering, on CPU. Its spec refuses this platform only for its worker: ours copies.

Runs in vLLM's environment, loaded by vLLM as a spec. The worker is the one that our own tiers use, so that
what differs is the tiering.
"""

from typing import Any

from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from engine_adapters.vllm.inside.worker import CpuWorker


class Region(SharedOffloadRegion):
    """vLLM's region, with the view that our worker wants."""

    @property
    def part(self) -> Any:
        return self.base_tensor.view(self.num_chunks, -1).numpy()


class OwnTiering(TieringOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = Region(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CpuWorker(kv_caches, region, self.blocks_per_chunk)
