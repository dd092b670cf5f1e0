"""The newest pages that this engine has written, for whoever joins late and asks what there is."""

import threading
from collections.abc import Iterable

import numpy as np

from cache.tiers.base import Known

CAPACITY = 1 << 20
"""Pages, of 12 bytes each."""
_GONE = np.uint32(0)
"""No page ends at token 0."""


class Written:
    """A ring of (prefix key, end token), from many threads."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._prefix_keys = np.zeros(capacity, np.uint64)
        self._end_tokens = np.zeros(capacity, np.uint32)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, pages: Iterable[tuple[int, int]]) -> None:
        """They are there now."""
        with self._lock:
            for prefix_key, end_token in pages:
                at = self._count % len(self._prefix_keys)
                self._prefix_keys[at], self._end_tokens[at] = prefix_key, end_token
                self._count += 1

    def remove(self, pages: Iterable[tuple[int, int]]) -> None:
        """They aren't there any more."""
        gone = np.array([prefix_key for prefix_key, _ in pages], np.uint64)
        with self._lock:
            self._end_tokens[np.isin(self._prefix_keys, gone)] = _GONE

    def forget(self) -> None:
        """Nothing is there any more."""
        with self._lock:
            self._count = 0
            self._end_tokens[:] = _GONE

    def known(self) -> Known:
        """All of them, each once."""
        with self._lock:
            live = self._end_tokens != _GONE
            prefix_keys, firsts = np.unique(self._prefix_keys[live], return_index=True)
            return Known(prefix_keys, self._end_tokens[live][firsts])
