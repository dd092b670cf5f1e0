"""Calls that wait for a store, some at once."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_order(call: Callable[[T], R], items: Iterable[T], width: int) -> Iterator[R]:
    """`map`, with `width` calls at once."""
    window = deque[Future[R]]()
    with ThreadPoolExecutor(width) as pool:
        for item in items:
            window.append(pool.submit(call, item))
            if len(window) >= 4 * width:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()


class Hands:
    """A few threads for calls that may hang: whoever asks waits until a deadline, not for the calls."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._most = count
        self._started = 0
        self._starting = threading.Lock()
        self._calls = SimpleQueue[Callable[[], None] | None]()

    def run(self, calls: Sequence[Callable[[], None]], deadline: float = math.inf) -> None:
        """Run them, and wait until all have ended or `deadline` (time.monotonic) has passed."""
        if not calls:
            return
        over, left = threading.Event(), threading.Semaphore(len(calls) - 1)

        def counted(call: Callable[[], None]) -> None:
            try:
                if time.monotonic() < deadline:
                    call()
            finally:
                if not left.acquire(blocking=False):
                    over.set()

        self._start(len(calls))
        for call in calls:
            self._calls.put(partial(counted, call))
        over.wait(min(max(deadline - time.monotonic(), 0), threading.TIMEOUT_MAX))

    def close(self) -> None:
        """End the threads, as soon as what they are at returns."""
        for _ in range(self._started):
            self._calls.put(None)

    def _start(self, wanted: int) -> None:
        """Have as many threads as there ever were calls at once, within bounds."""
        with self._starting:
            while self._started < min(wanted, self._most):
                name = f"{self._name}-{self._started}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._started += 1

    def _work(self) -> None:
        while call := self._calls.get():
            call()
