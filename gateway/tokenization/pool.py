"""Threads that encode long texts, and the refusal of more work than they can do in time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from gateway.tokenization.errors import Overloaded

P = ParamSpec("P")
R = TypeVar("R")


class EncodePool:
    """A bounded thread pool, shared by all models, used from one event loop.

    A job is refused once the work ahead of it would take longer than `max_wait_s`, by the submitters'
    estimates. A job on an idle pool is always taken. Jobs run to their end: their results are remembered even
    if the request is gone.
    """

    def __init__(self, workers: int, max_wait_s: float) -> None:
        self.workers = workers
        self.max_wait_s = max_wait_s
        self.refused = 0
        self._ahead_s = 0.0
        self._closed = False
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="encode")

    @property
    def wait_s(self) -> float:
        """How long a new job would wait, estimated."""
        return self._ahead_s / self.workers

    def submit(
        self, estimate_s: float, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Start or queue a job that takes about `estimate_s` on one thread.

        Raises:
            Overloaded: the job would have to wait longer than `max_wait_s`.
        """
        self.admit(estimate_s)
        future = self.start(work, *args, **kwargs)
        future.add_done_callback(lambda _: self.leave(estimate_s))
        return future

    def admit(self, estimate_s: float) -> None:
        """Count work that will be started, until it leaves.

        Raises:
            Overloaded: it would have to wait longer than `max_wait_s`.
        """
        if self.wait_s > self.max_wait_s:
            self.refused += 1
            raise Overloaded(self.wait_s)
        self._ahead_s += estimate_s

    def leave(self, estimate_s: float) -> None:
        """Work that was admitted is done."""
        self._ahead_s -= estimate_s

    def start(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Start or queue a job of admitted work; of a closed pool it is cancelled."""
        if self._closed:
            dropped: asyncio.Future[R] = asyncio.get_running_loop().create_future()
            dropped.cancel()
            return dropped
        return asyncio.wrap_future(self._executor.submit(work, *args, **kwargs))

    def close(self) -> None:
        """Drop queued jobs and let the running ones end."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
