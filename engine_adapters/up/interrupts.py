"""Ctrl-C, SIGTERM and a closing terminal do the same, and never between two steps that belong together."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, each ending signal raises KeyboardInterrupt in the main thread, after what is `held`."""

    def __init__(self) -> None:
        self._holding = False
        self._pending = False

    def __enter__(self) -> Self:
        self._before = [signal.signal(number, self._heard) for number in ENDING]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(ENDING, self._before, strict=True):
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if not self._holding:
            raise KeyboardInterrupt
        self._pending = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do the block to its end before a signal is heard."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
