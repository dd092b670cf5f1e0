"""Responses that engines keep: what goes on from one, or asks for it, must reach the replica that has it."""

import re
from collections import OrderedDict

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')

_REMEMBERED = 100_000
"""Responses whose replica is known; some 20 MB. Engines keep fewer."""


class StoredResponses:
    """Which replica has which response, of the latest ones."""

    def __init__(self) -> None:
        self._replicas: OrderedDict[str, str] = OrderedDict()

    def note(self, chunk: bytes, replica: str) -> None:
        """Read a new response's id out of an answer's first chunk."""
        found = _ID.search(chunk)
        if found is not None:
            self._replicas[found[1].decode()] = replica
            if len(self._replicas) > _REMEMBERED:
                self._replicas.popitem(last=False)

    def replica(self, response: str) -> str | None:
        """The replica that has it; None where that isn't known."""
        return self._replicas.get(response)
