"""A shared store in memory, slow to answer if need be."""

import time
from collections.abc import Sequence

from cache.keys import Namespace
from cache.testing import content, key
from cache.tiers.base import Outcome, Read, Store, Tier, Usage, Write


class Remote(Store):
    """A shared store in memory that answers look-ups after a while."""

    tier = Tier.SHARED
    remote = True
    batch = 4

    def __init__(self, numbers: Sequence[int] = (), look_seconds: float = 0.0) -> None:
        self.pages = {key(number): bytes(content(number)) for number in numbers}
        self.look_seconds = look_seconds
        self.calls: list[int] = []

    def find(self, namespace: Namespace, keys: Sequence[bytes]) -> list[bool]:
        time.sleep(self.look_seconds)
        return [key in self.pages for key in keys]

    def read(self, namespace: Namespace, reads: Sequence[Read]) -> list[Outcome]:
        self.calls.append(len(reads))
        outcomes = []
        for read in reads:
            if read.key in self.pages:
                read.into[0][:] = self.pages[read.key]
            outcomes.append(Outcome.DONE if read.key in self.pages else Outcome.MISSING)
        return outcomes

    def write(self, namespace: Namespace, writes: Sequence[Write]) -> list[Outcome]:
        self.pages |= {write.page.key: bytes(write.parts[0]) for write in writes}
        return [Outcome.DONE] * len(writes)

    def clear(self, tenant: int | None = None) -> int:
        count = len(self.pages)
        self.pages.clear()
        return count

    def usage(self) -> Usage:
        return Usage(len(self.pages), 0, 0)
