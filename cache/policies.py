"""What goes down to the tiers below `host`, and when."""

from abc import ABC, abstractmethod
from collections import OrderedDict

from cache.errors import SettingsError
from cache.keys import Namespace


class WritePolicy(ABC):
    """When a page in `host` is offered to the tiers below."""

    @abstractmethod
    def at_store(self) -> bool:
        """As soon as it is stored."""

    @abstractmethod
    def at_touch(self, touches: int) -> bool:
        """At its use number `touches`, where storing it was the first."""

    @abstractmethod
    def before_eviction(self) -> bool:
        """When it is about to be evicted."""


class Through(WritePolicy):
    """At once: an eviction from `host` costs nothing, a restart loses nothing."""

    def at_store(self) -> bool:  # noqa: D102
        return True

    def at_touch(self, touches: int) -> bool:  # noqa: D102
        return False

    def before_eviction(self) -> bool:  # noqa: D102
        return False


class Back(WritePolicy):
    """Before eviction: pages that `host` keeps are written when the engine ends, unless it is killed."""

    def at_store(self) -> bool:  # noqa: D102
        return False

    def at_touch(self, touches: int) -> bool:  # noqa: D102
        return False

    def before_eviction(self) -> bool:  # noqa: D102
        return True


class Selective(WritePolicy):
    """At the second touch: what was used once only isn't worth a write."""

    def at_store(self) -> bool:  # noqa: D102
        return False

    def at_touch(self, touches: int) -> bool:  # noqa: D102
        return touches == 2

    def before_eviction(self) -> bool:  # noqa: D102
        return False


class Admission(ABC):
    """Which of the pages offered to a tier it takes."""

    @abstractmethod
    def admits(self, namespace: Namespace, key: bytes) -> bool:
        """Whether this offer is taken."""


class Always(Admission):
    """Every page."""

    def admits(self, namespace: Namespace, key: bytes) -> bool:  # noqa: D102
        return True


class SecondTouch(Admission):
    """A page that was offered before, within the last `memory` pages offered."""

    def __init__(self, memory: int = 65536) -> None:
        if memory < 1:
            raise SettingsError(f"second-touch admission must remember at least one page, not {memory}")
        self._memory = memory
        self._offered: OrderedDict[tuple[Namespace, bytes], None] = OrderedDict()

    def admits(self, namespace: Namespace, key: bytes) -> bool:  # noqa: D102
        name = namespace, key
        if name in self._offered:
            del self._offered[name]
            return True
        self._offered[name] = None
        if len(self._offered) > self._memory:
            self._offered.popitem(last=False)
        return False
