"""Waiting for what is to come, so long that a slow machine doesn't look like a fault."""

import time
from collections.abc import Callable

LIMIT_S = 60.0
EVERY_S = 0.05


def until(condition: Callable[[], bool], seconds: float = LIMIT_S) -> None:
    """Wait for a condition; fail if it doesn't come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it didn't come true within {seconds:g} s"
        time.sleep(EVERY_S)
