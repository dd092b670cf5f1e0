"""Host memory of an engine: vLLM's shared region, under a name of ours that nobody leaves behind."""

from pathlib import Path

from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

from engine_adapters import memory

from . import shm
from .copies import Bytes


class Region(SharedOffloadRegion):
    """Rows of one page each: worker 0's part, worker 1's, …, padded to 4 KiB.

    The workers map it first, the scheduler last; then the name is dropped, and the memory goes with the last
    process, however that ends.
    """

    _creator: bool

    def __init__(self, engine: str, pages: int, row_bytes: int, rank_bytes: int, rank: int | None) -> None:
        """`rank` is a worker's, None in the scheduler. Raises SettingsError if shared memory is too small."""
        self._rank_bytes = rank_bytes
        super().__init__(
            engine_id=f"hpkv-{engine}",
            num_chunks=pages,
            rank=rank,
            kv_bytes_per_chunk=row_bytes,
            cpu_page_size=rank_bytes,
            creator_memory_check=self._make,
        )
        shm.own(self.fd)

    def _make(self, size: int) -> None:
        """The first process has made the file, empty yet."""
        shm.own(self.fd)
        memory.require_shared(size)

    @property
    def memory(self) -> memoryview:
        """All rows, as bytes."""
        return memoryview(self.mmap_obj)

    @property
    def part(self) -> Bytes:
        """[pages, bytes of a worker's part]: this worker's."""
        assert self.rank is not None
        rows = self.base_tensor.view(self.num_chunks, -1).numpy()
        part: Bytes = rows[:, self.rank * self._rank_bytes : (self.rank + 1) * self._rank_bytes]
        return part

    def drop_name(self) -> None:
        """All processes have mapped it."""
        Path(self.mmap_path).unlink(missing_ok=True)

    def cleanup(self) -> None:
        """Unmap it; without its name dropped, the engine's start failed, and the name goes now."""
        if self._creator:
            self.drop_name()
            self._creator = False
        super().cleanup()
