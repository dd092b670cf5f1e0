"""Contender: SGLang 0.5.23's HiCacheFile, which always goes through the page cache (dropped before reads)."""

import sys
import time
from pathlib import Path

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

from benchmarks.tiers.contender import PAGE_BYTES, PAGES, serve
from benchmarks.tiers.data import buffer


class HiCache:
    def __init__(self, folder: Path) -> None:
        config = HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
            enable_storage_metrics=False, is_page_first_layout=True, model_name="bench",
        )  # fmt: skip
        self.store = HiCacheFile(config, file_path=str(folder))
        memory = torch.frombuffer(buffer(PAGES, PAGE_BYTES), dtype=torch.uint8)
        self.pages = memory.reshape(PAGES, PAGE_BYTES)
        self.wanted = self.pages.clone()

    def write(self, region: int) -> float:
        keys, begin = self._keys(region), time.perf_counter()
        assert self.store.batch_set(keys, list(self.pages))
        return time.perf_counter() - begin

    def read(self, region: int) -> float:
        self.pages[:] = 0
        keys, begin = self._keys(region), time.perf_counter()
        found = self.store.batch_get(keys, list(self.pages))
        seconds = time.perf_counter() - begin
        assert all(page is not None for page in found)
        assert torch.equal(self.pages, self.wanted)
        return seconds

    def _keys(self, region: int) -> list[str]:
        return [f"{region * PAGES + index:064x}" for index in range(PAGES)]


if __name__ == "__main__":
    hicache = HiCache(Path(sys.argv[1]))
    serve(hicache.write, hicache.read)
