"""The worker's side on CPU: blocks and host rows are both memory, and a thread copies between them."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from . import copies
from .region import Region

_Copy = Callable[[Iterable[copies.Plane], Iterable[copies.Place]], None]


class CpuWorker(OffloadingWorker):
    """Copies in the order of submission, while the model runs."""

    def __init__(self, caches: CanonicalKVCaches, region: Region, blocks_per_page: int) -> None:
        layers = [tensor.tensor.numpy() for tensor in caches.tensors]
        self._planes = copies.planes(layers, region.part, blocks_per_page)
        self._block_bytes = sum(tensor.page_size_bytes for tensor in caches.tensors)
        self._blocks_per_page = blocks_per_page
        self._region = region
        self._threads = ThreadPoolExecutor(1, "hpkv-copy")
        self._jobs: dict[int, Future[TransferResult]] = {}

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: BlockIDsLoadStoreSpec) -> bool:
        """Blocks to rows."""
        return self._submit(job_id, src_spec, dst_spec, copies.to_host)

    def submit_load(self, job_id: int, src_spec: BlockIDsLoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Rows to blocks."""
        return self._submit(job_id, dst_spec, src_spec, copies.from_host)

    def get_finished(self) -> list[TransferResult]:
        """Copies that ended since the last call."""
        done = [job for job, future in self._jobs.items() if future.done()]
        return [self._jobs.pop(job).result() for job in done]

    def wait(self, job_ids: set[int]) -> None:
        """Block until these copies have ended."""
        wait([self._jobs[job] for job in job_ids if job in self._jobs])

    def shutdown(self) -> None:
        """End the copies, let the memory go."""
        self._threads.shutdown()
        self._planes.clear()
        self._region.cleanup()

    def _submit(self, job: int, gpu: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec, copy: _Copy) -> bool:
        places = copies.places(
            gpu.block_ids.tolist(), host.block_ids.tolist(), gpu.block_indices[0], self._blocks_per_page
        )
        self._jobs[job] = self._threads.submit(self._run, job, places, copy)
        return True

    def _run(self, job: int, places: list[copies.Place], copy: _Copy) -> TransferResult:
        begun = time.perf_counter()
        copy(self._planes, places)
        return TransferResult(job, True, len(places) * self._block_bytes, time.perf_counter() - begun)
