"""Texts that wait for a thread together.

While all threads are at work for a model, what comes is gathered, and encoded by one call when a thread is
free: back to back, in warm caches, where one job a request would alternate with the event loop for the
interpreter's lock and find the caches cold each time.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from gateway.tokenization.errors import NotEncodable
from gateway.tokenization.pool import EncodePool
from gateway.tokenization.results import TokenIds

log = logging.getLogger(__name__)

Encoded = dict[str, TokenIds]

# A text that takes longer goes by itself, and no more are gathered than that: nobody waits long for others.
GATHERED_S = 0.01


class Gathering:
    """One model's way to the pool's threads.

    `encode` raises NotEncodable where it fails on one of the texts. `done` is told of everything that was
    encoded.
    """

    def __init__(
        self, pool: EncodePool, encode: Callable[[list[str]], Encoded], done: Callable[[Encoded], None]
    ) -> None:
        self._pool = pool
        self._encode = encode
        self._done = done
        self._running = 0
        self._texts: list[str] = []
        self._estimate_s = 0.0
        self._result: asyncio.Future[Encoded] | None = None

    def submit(self, texts: list[str], estimate_s: float) -> asyncio.Future[Encoded]:
        """The ids of these texts, among others. One that can't be encoded is missing there.

        Raises:
            Overloaded: too much else waits.
        """
        self._pool.admit(estimate_s)
        if self._running < self._pool.workers or estimate_s > GATHERED_S:
            return self._start(texts, estimate_s, asyncio.get_running_loop().create_future())
        if self._result is None:
            self._result = asyncio.get_running_loop().create_future()
        self._texts += texts
        self._estimate_s += estimate_s
        result = self._result
        if self._estimate_s > GATHERED_S:
            self._start_gathered(result)
        return result

    def _start_gathered(self, result: asyncio.Future[Encoded]) -> None:
        texts, estimate_s = self._texts, self._estimate_s
        self._texts, self._estimate_s, self._result = [], 0.0, None
        self._start(texts, estimate_s, result)

    def _start(
        self, texts: list[str], estimate_s: float, result: asyncio.Future[Encoded]
    ) -> asyncio.Future[Encoded]:
        self._running += 1
        job = self._pool.start(self._encode_what_can_be, texts)
        job.add_done_callback(partial(self._ended, estimate_s, result))
        return result

    def _ended(
        self, estimate_s: float, result: asyncio.Future[Encoded], job: asyncio.Future[Encoded]
    ) -> None:
        self._running -= 1
        self._pool.leave(estimate_s)
        if job.cancelled():
            result.cancel()
        elif (error := job.exception()) is not None:
            result.set_exception(error)
        else:
            self._done(job.result())
            result.set_result(job.result())
        if self._result is not None:
            self._start_gathered(self._result)

    def _encode_what_can_be(self, texts: list[str]) -> Encoded:
        """One text's fault is not the others'."""
        try:
            return self._encode(texts)
        except NotEncodable as error:
            if len(texts) == 1:
                log.debug("%s", error)
                return {}
            return {text: ids for one in texts for text, ids in self._encode_what_can_be([one]).items()}
