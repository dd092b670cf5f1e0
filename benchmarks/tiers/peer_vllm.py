"""Contender: vLLM 0.32's FileSystemTierManager, without an engine. Runs in vLLM's environment."""

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import vllm.v1.kv_offload.tiering.fs.manager as fs
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import TransferJob

from benchmarks.tiers.contender import PAGE_BYTES, PAGES, serve
from benchmarks.tiers.data import buffer

JOBS = 8


class Vllm:
    def __init__(self, folder: Path) -> None:
        self.memory = buffer(PAGES, PAGE_BYTES)
        self.pages = np.frombuffer(self.memory, np.uint8).reshape(PAGES, PAGE_BYTES)
        self.wanted = self.pages.copy()
        mapper = FileMapper(
            root_dir=str(folder), model_name="bench/bench", tokens_per_hash=16, blocks_per_file=1, tp_size=1,
            pp_size=1, pcp_size=1, dcp_size=1, rank=0, dtype="bfloat16", parallel_agnostic=True,
        )  # fmt: skip
        fs.FileMapper = SimpleNamespace(from_offloading_spec=lambda **_: mapper)
        events = SimpleNamespace(enable_kv_cache_events=False)
        spec = SimpleNamespace(blocks_per_chunk=1, kv_events_config=events)
        self.tier = fs.FileSystemTierManager(spec, memoryview(self.pages), "fs", str(folder))
        self.context = ReqContext(req_id="bench")
        self.job = 0

    def write(self, region: int) -> float:
        return self._run(region, self.tier.submit_store, is_load=False)

    def read(self, region: int) -> float:
        self.pages[:] = 0
        seconds = self._run(region, self.tier.submit_load, is_load=True)
        assert (self.pages == self.wanted).all()
        return seconds

    def _run(self, region: int, submit: Callable[[Any], None], is_load: bool) -> float:
        keys = [
            make_offload_key(hashlib.sha256(b"%d" % (region * PAGES + index)).digest(), 0)
            for index in range(PAGES)
        ]
        begin = time.perf_counter()
        for part in np.array_split(np.arange(PAGES), JOBS):
            submit(TransferJob(self.job, [keys[at] for at in part], part, is_load, self.context))
            self.job += 1
        ended = 0
        while ended < JOBS:
            for result in self.tier.get_finished_jobs():
                assert result.success, result
                ended += 1
            time.sleep(0.0002)
        return time.perf_counter() - begin


if __name__ == "__main__":
    vllm = Vllm(Path(sys.argv[1]))
    serve(vllm.write, vllm.read)
