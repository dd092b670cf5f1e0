"""Runs inside the engine: our connector, over a disk that a test can slow down, fill up or hang.

The file that HPKV_TEST_FAULTS names holds what is wrong: `read_seconds` and `write_seconds` (a negative
number hangs), `read_errno` and `write_errno`. A request with `kv_transfer_params: {"hpkv_test_forget": n}`
finds its page n gone from `host`; `{"hpkv_test_pin_all": s}` leases all of `host` for s seconds.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cache.tiers.base import Tier
from cache.tiers.ssd.device import Device
from engine_adapters.vllm.inside.connector import HpkvConnector as Ours

FAULTS = Path(os.environ["HPKV_TEST_FAULTS"])


def disturb(what: str) -> None:
    while (seconds := json.loads(FAULTS.read_bytes()).get(f"{what}_seconds", 0)) < 0:
        time.sleep(0.05)
    time.sleep(seconds)
    number = json.loads(FAULTS.read_bytes()).get(f"{what}_errno", 0)
    if number:
        raise OSError(number, os.strerror(number))


class Disturbed(Device):
    def read(self, offset: int, buffers: Sequence[memoryview]) -> int:
        disturb("read")
        return super().read(offset, buffers)

    def write(self, offset: int, buffers: Sequence[memoryview | bytes]) -> None:
        disturb("write")
        super().write(offset, buffers)


class HpkvConnector(Ours):
    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> None:
        super().set_xfer_handshake_metadata_pp_aware(metadata)
        for tier, level in self._manager.tiers._state.levels.items():
            if tier is Tier.SSD:
                level.store._files.pages.__class__ = Disturbed

    def on_new_request(self, request: Any) -> None:
        super().on_new_request(request)
        wishes = request.kv_transfer_params or {}
        tiers, namespace = self._manager.tiers, self._manager.namespaces.of(None)
        if "hpkv_test_forget" in wishes:
            (slot,) = tiers.slots(namespace, [request.block_hashes[wishes["hpkv_test_forget"]]])
            with tiers._state.lock:
                tiers._state.host.remove([slot])
        if "hpkv_test_pin_all" in wishes:
            with tiers._state.lock:
                lease = tiers._state.leases.take(tiers._state.now() + wishes["hpkv_test_pin_all"])
                lease.add(tiers._state.host.book.live())
