"""Runs inside SGLang: our storage backend, over stores with faults (see `tests.e2e.disturbed`)."""

from typing import Any

from engine_adapters.sglang.inside.storage import HpkvStorage as Ours
from tests.e2e.disturbed import disturb_levels


class HpkvStorage(Ours):
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        disturb_levels(self.tiers)
