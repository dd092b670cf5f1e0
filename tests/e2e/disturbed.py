"""Runs inside an engine: storage that a test can slow down, fill up or hang.

The file that HPKV_TEST_FAULTS names holds what is wrong with `ssd`: `read_seconds` and `write_seconds` (a
negative number hangs), `read_errno` and `write_errno`; and the same with a `shared_` before it for `shared`,
if that is a folder. `recompute_factor` says how many times slower than it is recomputing seems to be.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cache.economics import Costs
from cache.hierarchy import Hierarchy
from cache.stores.posix import Posix
from cache.stores.posix.files import Files
from cache.tiers.base import Tier
from cache.tiers.ssd.device import Device

FAULTS = Path(os.environ["HPKV_TEST_FAULTS"])
RECOMPUTE_FACTOR = 10.0
"""Unless the file says another: on a busy machine, a few pages of a small model may be computed sooner than
they are read, and a test that expects a load would fail."""


def disturb(what: str) -> None:
    while (seconds := json.loads(FAULTS.read_bytes()).get(f"{what}_seconds", 0)) < 0:
        time.sleep(0.05)
    time.sleep(seconds)
    number = json.loads(FAULTS.read_bytes()).get(f"{what}_errno", 0)
    if number:
        raise OSError(number, os.strerror(number))


def disturb_levels(tiers: Hierarchy) -> None:
    """From now on its stores have faults."""
    levels = tiers._state.levels
    if Tier.SSD in levels:
        levels[Tier.SSD].store._files.pages.__class__ = DisturbedDevice
    if Tier.SHARED in levels and isinstance(levels[Tier.SHARED].store, Posix):
        levels[Tier.SHARED].store._files.__class__ = DisturbedFiles


def disturb_costs(tiers: Hierarchy) -> None:
    """From now on recomputing seems slower than it is."""
    tiers._state.costs.__class__ = DisturbedCosts


class DisturbedCosts(Costs):
    def recompute_seconds(self, tokens: int) -> float:
        return super().recompute_seconds(tokens) * self._factor

    @property
    def prefill_rate(self) -> float:
        return super().prefill_rate / self._factor

    @property
    def _factor(self) -> float:
        factor: float = json.loads(FAULTS.read_bytes()).get("recompute_factor", RECOMPUTE_FACTOR)
        return factor


class DisturbedDevice(Device):
    def read(self, offset: int, buffers: Sequence[memoryview]) -> int:
        disturb("read")
        return super().read(offset, buffers)

    def write(self, offset: int, buffers: Sequence[memoryview | bytes]) -> None:
        disturb("write")
        super().write(offset, buffers)


class DisturbedFiles(Files):
    def read(self, *args: Any) -> Any:
        disturb("shared_read")
        return super().read(*args)

    def write(self, *args: Any) -> Any:
        disturb("shared_write")
        return super().write(*args)
