"""Namespaces by LoRA: an adapter's bytes are read when it is first used, on a thread of their own."""

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from cache.errors import CacheError
from cache.keys import Base, Namespace

logger = logging.getLogger(__name__)


class Lora(NamedTuple):
    """An adapter as the engine knows it."""

    name: str
    path: str


class Namespaces:
    """The namespace of requests without a LoRA, and of each LoRA by its content."""

    def __init__(self, base: Base, fingerprint: Callable[[str], str]) -> None:
        """`fingerprint` reads the adapter at a path; it may raise CacheError or OSError."""
        self.base = base
        self._fingerprint = fingerprint
        self._plain = base.namespace()
        self._known: dict[Lora, Namespace | None] = {}

    def of(self, lora: Lora | None) -> Namespace | None:
        """None as long as an adapter's content isn't known: its requests are served without tiers."""
        if lora is None:
            return self._plain
        if lora not in self._known:
            self._known[lora] = None
            threading.Thread(target=self._read, args=(lora,), name="hpkv-lora", daemon=True).start()
        return self._known[lora]

    def _read(self, lora: Lora) -> None:
        try:
            self._known[lora] = self.base.namespace(self._fingerprint(lora.path))
        except (CacheError, OSError) as error:
            logger.warning("LoRA %s is served without tiers: its weights can't be read: %s", lora.name, error)
