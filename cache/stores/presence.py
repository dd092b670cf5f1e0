"""A bounded memory of what look-ups said lately, so that most need no round trip.

What it says is a hint: other engines write and remove pages all the time. A page that was there is believed
to be for minutes, since a wrong belief costs one read that misses. One that wasn't is believed to be missing
for seconds, since a wrong belief costs a hit.
"""

import enum
import threading
import time
from collections.abc import Callable, Sequence

from cache.keys import Namespace

THERE_SECONDS = 300.0
GONE_SECONDS = 5.0
CAPACITY = 1 << 18
"""Keys in all: about 50 MB at the most."""


class Hint(enum.Enum):
    """What is known of a page."""

    THERE = "there"
    GONE = "gone"
    UNKNOWN = "unknown"


class Presence:
    """Hints by (namespace, key), from many threads at once."""

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], float] = time.monotonic) -> None:
        self._there = _Recent(capacity // 2, THERE_SECONDS)
        self._gone = _Recent(capacity // 2, GONE_SECONDS)
        self._lock = threading.Lock()
        self._now = clock

    def recall(self, namespace: Namespace, keys: Sequence[bytes]) -> list[Hint]:
        """What is known of each page."""
        now = self._now()
        with self._lock:
            return [self._hint(namespace + key, now) for key in keys]

    def saw(self, namespace: Namespace, keys: Sequence[bytes], there: bool) -> None:
        """Each of the pages was there, or wasn't, just now."""
        now = self._now()
        now_so, no_more = (self._there, self._gone) if there else (self._gone, self._there)
        with self._lock:
            for key in keys:
                no_more.drop(namespace + key)
                now_so.add(namespace + key, now)

    def forget(self) -> None:
        """Everything may have changed."""
        with self._lock:
            self._there.clear()
            self._gone.clear()

    def _hint(self, name: bytes, now: float) -> Hint:
        if self._there.has(name, now):
            return Hint.THERE
        return Hint.GONE if self._gone.has(name, now) else Hint.UNKNOWN


class _Recent:
    """Names for some seconds, in two halves: when the young one is full, the old one is forgotten."""

    def __init__(self, capacity: int, seconds: float) -> None:
        self._half = max(capacity // 2, 1)
        self._seconds = seconds
        self._young: dict[bytes, float] = {}
        self._old: dict[bytes, float] = {}

    def add(self, name: bytes, now: float) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[name] = now + self._seconds

    def drop(self, name: bytes) -> None:
        self._young.pop(name, None)
        self._old.pop(name, None)

    def has(self, name: bytes, now: float) -> bool:
        until = self._young.get(name)
        if until is None:
            until = self._old.get(name, 0.0)
        return until > now

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()
