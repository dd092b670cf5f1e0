"""Leaving without cutting anybody off."""

import asyncio
import contextlib
from collections.abc import Iterator

from gateway.errors import Overloaded
from gateway.settings import ShutdownSettings


class Drain:
    """The gateway's way out: announced, then closed to new requests, then empty or out of time.

    Attributes:
        draining: shown by `/readyz`.
    """

    def __init__(self, settings: ShutdownSettings) -> None:
        self._settings = settings
        self.draining = False
        self._closed = False
        self._open_requests = 0
        self._empty = asyncio.Event()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a request as open.

        Raises:
            Overloaded: closed to new requests.
        """
        if self._closed:
            raise Overloaded("The gateway is shutting down; try again, and another instance will answer.")
        self._open_requests += 1
        try:
            yield
        finally:
            self._open_requests -= 1
            if not self._open_requests:
                self._empty.set()

    async def run(self) -> int:
        """Announce, close, and wait; return how many requests are still open when time is up."""
        self.draining = True
        await asyncio.sleep(self._settings.notice_s)
        self._closed = True
        if self._open_requests:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), self._settings.grace_s)
        return self._open_requests
