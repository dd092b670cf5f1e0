"""Contender: LMCache 0.5.6's `fs` L2 adapter with O_DIRECT, driven as its own benchmark drives it."""

import sys
import time
from pathlib import Path

import torch
from lmcache.cli.commands.bench.l2_adapter_bench.data import wait_eventfd
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2Adapter, FSL2AdapterConfig
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

from benchmarks.tiers.contender import PAGE_BYTES, PAGES, serve
from benchmarks.tiers.data import buffer

IN_FLIGHT = 8


class LMCache:
    def __init__(self, folder: Path) -> None:
        self.memory = torch.frombuffer(buffer(PAGES, PAGE_BYTES), dtype=torch.uint8)
        self.wanted = self.memory.clone()
        self.objects = [self._object(index) for index in range(PAGES)]
        self.adapter = FSL2Adapter(FSL2AdapterConfig(str(folder), use_odirect=True))

    def write(self, region: int) -> float:
        keys, begin = self._keys(region), time.perf_counter()
        for lane in range(IN_FLIGHT):
            self.adapter.submit_store_task(keys[lane::IN_FLIGHT], self.objects[lane::IN_FLIGHT])
        ended = 0
        while ended < IN_FLIGHT:
            assert wait_eventfd(self.adapter.get_store_event_fd())
            results = self.adapter.pop_completed_store_tasks()
            assert all(result.is_successful() for result in results.values())
            ended += len(results)
        return time.perf_counter() - begin

    def read(self, region: int) -> float:
        self.memory[:] = 0
        keys, begin = self._keys(region), time.perf_counter()
        waiting = {
            self.adapter.submit_load_task(keys[lane::IN_FLIGHT], self.objects[lane::IN_FLIGHT])
            for lane in range(IN_FLIGHT)
        }
        found = 0
        while waiting:
            assert wait_eventfd(self.adapter.get_load_event_fd())
            for task in list(waiting):
                bitmap = self.adapter.query_load_result(task)
                if bitmap is not None:
                    waiting.remove(task)
                    found += bitmap.popcount()
        seconds = time.perf_counter() - begin
        assert found == PAGES
        assert torch.equal(self.memory, self.wanted)
        return seconds

    def _object(self, index: int) -> TensorMemoryObj:
        start = index * PAGE_BYTES
        metadata = MemoryObjMetadata(
            shape=torch.Size([PAGE_BYTES]),
            dtype=torch.uint8,
            address=start,
            phy_size=PAGE_BYTES,
            fmt=MemoryFormat.KV_2LTD,
            ref_count=1,
        )
        return TensorMemoryObj(
            raw_data=self.memory[start : start + PAGE_BYTES], metadata=metadata, parent_allocator=None
        )

    def _keys(self, region: int) -> list[ObjectKey]:
        return [
            ObjectKey(
                chunk_hash=(region * PAGES + index).to_bytes(16, "big"), model_name="bench", kv_rank=index
            )
            for index in range(PAGES)
        ]


if __name__ == "__main__":
    lmcache = LMCache(Path(sys.argv[1]))
    serve(lmcache.write, lmcache.read)
