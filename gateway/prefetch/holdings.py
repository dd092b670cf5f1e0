"""What each key has kept in caches, within its bounds: one tenant must not fill what all share."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.errors import RateLimited

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Holding(Generic[T]):
    """Something that is kept until a time, by the clock of its `Holdings`."""

    what: T
    tokens: int
    until: float


@dataclass(slots=True)
class _Asked:
    """What is being asked for, once or several times at once."""

    tokens: int
    until: float
    times: int = 0


@dataclass(slots=True)
class Holdings(Generic[T]):
    """By owner and name. `kind` is what they are, in words; `most` and `most_tokens` bound one owner's."""

    kind: str
    most: int
    most_tokens: int
    clock: Callable[[], float]
    _held: dict[str, dict[str, Holding[T]]] = field(default_factory=dict)
    _asked: dict[str, dict[str, _Asked]] = field(default_factory=dict)

    @contextmanager
    def asking(self, owner: str, name: str, what: T, tokens: int, seconds: float) -> Iterator[None]:
        """Keep its room while it is being asked for, so that many at once find no more room than one after
        the other, and hold it then; if that fails, all is as before.

        Raises:
            RateLimited: the owner has no room for it.
        """
        self._check(owner, name, tokens)
        until = self.clock() + seconds
        asked = self._asked.setdefault(owner, {}).setdefault(name, _Asked(tokens, until))
        asked.until = max(asked.until, until)
        asked.times += 1
        try:
            yield
            self._of(owner)[name] = Holding(what, tokens, until)
        finally:
            asked.times -= 1
            if not asked.times:
                del self._asked[owner][name]

    def hold(self, owner: str, name: str, what: T, tokens: int, seconds: float) -> None:
        """Note that it is kept, in place of an earlier one of the name."""
        self._of(owner)[name] = Holding(what, tokens, self.clock() + seconds)

    def get(self, owner: str, name: str) -> T | None:
        """What this owner has of the name; None if it has none."""
        holding = self._of(owner).get(name)
        return holding.what if holding is not None else None

    def drop(self, owner: str, name: str) -> T | None:
        """Forget it, and return what it was; None if this owner has none of the name."""
        holding = self._of(owner).pop(name, None)
        return holding.what if holding is not None else None

    def left_s(self, name: str, but: str) -> float:
        """Seconds for which any owner but this one has it kept, or has just asked for it."""
        held = [self._all(owner) for owner in self._held.keys() | self._asked.keys() if owner != but]
        return max((each[name].until - self.clock() for each in held if name in each), default=0.0)

    def _check(self, owner: str, name: str, tokens: int) -> None:
        others = [holding for other, holding in self._all(owner).items() if other != name]
        held = sum(holding.tokens for holding in others)
        if len(others) < self.most and held + tokens <= self.most_tokens:
            return
        ends = min((holding.until for holding in others), default=self.clock())
        raise RateLimited(
            f"Your {self.kind} are {len(others)} with {held} tokens, and this is one more with {tokens}; "
            f"a key may have {self.most} with {self.most_tokens} at a time.",
            retry_after_s=max(1, math.ceil(ends - self.clock())),
        )

    def _all(self, owner: str) -> Mapping[str, "Holding[T] | _Asked"]:
        """What an owner has, and is asking for."""
        return {**self._of(owner), **self._asked.get(owner, {})}

    def _of(self, owner: str) -> dict[str, Holding[T]]:
        now = self.clock()
        kept = {name: one for name, one in self._held.get(owner, {}).items() if one.until > now}
        self._held[owner] = kept
        return kept
