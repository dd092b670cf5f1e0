"""Responses that engines keep: what goes on from one, or asks for it, must reach the replica that has it, and
must come from whoever made it."""

import re
from collections import OrderedDict
from typing import Any, NamedTuple

from gateway.errors import ResponseNotFound

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,128})"')

_REMEMBERED = 100_000
"""Responses whose replica is known; some 30 MB. Engines keep fewer."""


class _Kept(NamedTuple):
    replica: str
    owner: str


class StoredResponses:
    """Which replica has which response, of the latest ones, and who may ask for it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def note(self, chunk: bytes, replica: str, owner: str) -> None:
        """Read a new response's id out of an answer's first chunk.

        Args:
            owner: who asked for it, as `Access.check_api` tells it.
        """
        found = _ID.search(chunk)
        if found is None:
            return
        response = found[1].decode()
        # Clients may choose ids: taking another's must not make it theirs.
        if self.allows(response, owner):
            self._kept[response] = _Kept(replica, owner)
        if len(self._kept) > _REMEMBERED:
            self._kept.popitem(last=False)

    def replica(self, response: str) -> str | None:
        """The replica that has it; None where that isn't known."""
        kept = self._kept.get(response)
        return kept.replica if kept is not None else None

    def allows(self, response: str, owner: str) -> bool:
        """Whether it isn't known to be somebody else's."""
        kept = self._kept.get(response)
        return kept is None or kept.owner == owner

    def check(self, response: Any, owner: str, *, param: str | None = None) -> None:
        """Keep somebody else's response secret: even that it exists.

        Args:
            param: the request's field that names it.

        Raises:
            ResponseNotFound
        """
        if isinstance(response, str) and not self.allows(response, owner):
            raise ResponseNotFound(response, param=param)
