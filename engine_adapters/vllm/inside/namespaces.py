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
    number: int
    """Another one each time that it is loaded."""


class Adapter(NamedTuple):
    """An adapter whose content is known."""

    lora: Lora
    namespace: Namespace


class Namespaces:
    """The namespace of requests without a LoRA, and of each LoRA by its content."""

    def __init__(self, base: Base, fingerprint: Callable[[str], str]) -> None:
        """`fingerprint` reads the adapter at a path; it may raise CacheError or OSError."""
        self.base = base
        self._fingerprint = fingerprint
        self.plain = base.namespace()
        """Of requests without a LoRA."""
        self._known: dict[Lora, Namespace | None] = {}
        self._first: dict[tuple[str, str], Namespace] = {}
        self._named: dict[str, Lora] = {}

    def of(self, lora: Lora | None) -> Namespace | None:
        """None as long as an adapter's content isn't known: its requests are served without tiers."""
        if lora is None:
            return self.plain
        self._named[lora.name] = lora
        if lora not in self._known:
            self._known[lora] = None
            threading.Thread(target=self._read, args=(lora,), name="hpkv-lora", daemon=True).start()
        return self._known[lora]

    def adapters(self) -> dict[str, Adapter]:
        """By name, those whose content is known; where a name has had two contents, what it was used for
        last."""
        named = list(self._named.items())  # requests add to it meanwhile
        known = ((name, lora, self._known.get(lora)) for name, lora in named)
        return {name: Adapter(lora, found) for name, lora, found in known if found is not None}

    def _read(self, lora: Lora) -> None:
        try:
            namespace = self.base.namespace(self._fingerprint(lora.path))
        except (CacheError, OSError) as error:
            logger.warning("LoRA %s is served without tiers: its weights can't be read: %s", lora.name, error)
            return
        # The engine names pages by name and path: its own cache may still hold those of the first one.
        if self._first.setdefault(lora[:2], namespace) == namespace:
            self._known[lora] = namespace
        else:
            logger.warning(
                "LoRA %s is served without tiers: it was replaced at its path; give it another name",
                lora.name,
            )
