"""Work on a thread of its own that nobody waits for when the process ends."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Run `work` on a new daemon thread; what it raises is raised here.

    Not `asyncio.to_thread`: its threads are joined at the end, and a hub that doesn't answer is waited for
    a minute. Cancelling leaves the thread to itself.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            outcome.set_exception(error)

    threading.Thread(target=run, name=f"aside {work.__name__}", daemon=True).start()
    return await asyncio.wrap_future(outcome)
