"""What takes too long for the agent's thread, done by another, one after the other."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class Jobs:
    """One thread. It is a daemon: a store that hangs doesn't keep the engine from ending."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"hpkv-agent-{name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have it done; the future is polled."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - whoever polls gets it
                future.set_exception(error)

        self._queue.put(run)
        return future

    def close(self, seconds: float) -> None:
        """End after what is under way; wait for that so long."""
        self._queue.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (run := self._queue.get()) is not None:
            run()
