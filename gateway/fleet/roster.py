"""Replicas that came by themselves: each has a lease, and leaves when it runs out."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gateway.errors import Conflict, NotFound
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.settings import ReplicaSettings

log = logging.getLogger(__name__)

FORGET_S: Final = 3600.0
"""After a replica has left, so that whoever collects metrics has seen its last ones."""


class Lease:
    """One registered server, until its time is over."""

    def __init__(self, settings: ReplicaSettings) -> None:
        self.settings: Final = settings
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def left_s(self) -> float:
        """Seconds until it runs out."""
        return max(0.0, self._timer.when() - self._loop.time()) if self._timer is not None else 0.0

    def renew(self, seconds: float, expired: Callable[[], None]) -> None:
        """Run for `seconds` from now on."""
        self.end()
        self._timer = self._loop.call_later(seconds, expired)

    def end(self) -> None:
        """Run no more."""
        if self._timer is not None:
            self._timer.cancel()


class Roster:
    """The registered servers of a fleet.

    Args:
        build: makes a server's replicas.
        most: replicas that may be registered at a time.
        forget: called with the name of a replica that left and didn't come back.
    """

    def __init__(
        self,
        fleet: Fleet,
        build: Callable[[ReplicaSettings], Sequence[Replica]],
        most: int,
        forget: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._build = build
        self._most = most
        self._forget = forget
        self._fixed = frozenset(replica.name for replica in fleet)
        self._fixed_urls = {replica.engine.connection.url: replica.name for replica in fleet}
        self._leases: dict[str, Lease] = {}

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def lease(self, replica: str) -> Lease | None:
        """The lease of a replica; None of one that the settings name."""
        return next((lease for lease in self if replica in lease.settings.rank_names()), None)

    def register(self, settings: ReplicaSettings, lease_s: float) -> None:
        """Take a server in, or renew its lease. One that says other things of itself than before replaces
        what had its name or its URL.

        Raises:
            Conflict: its name or its URL is one of the settings', or another has it; too many are registered.
        """
        self._check_names(settings)
        lease = self._leases.get(settings.name)
        if lease is None or lease.settings != settings:
            lease = self._take_in(settings)
        lease.renew(lease_s, lambda: self._leave(settings.name, "its lease ran out"))

    def withdraw(self, name: str) -> None:
        """A registered server says goodbye.

        Raises:
            NotFound, Conflict: nobody of this name is there; it is one of the settings'.
        """
        if name not in self._leases:
            if name in self._fixed:
                raise Conflict(f"Replica '{name}' is one of the settings': take it out there.")
            raise NotFound(f"No replica is registered as '{name}'.")
        self._leave(name, "it said goodbye")

    def close(self) -> None:
        """Let no lease run out any more."""
        for lease in self:
            lease.end()

    def _check_names(self, settings: ReplicaSettings) -> None:
        names = set(settings.rank_names())
        url = _url(settings)
        others = {
            n for lease in self if not _same(lease.settings, settings) for n in lease.settings.rank_names()
        }
        for taken in sorted(names & (self._fixed | others)):
            raise Conflict(
                f"The name '{taken}' is taken by another replica: register as another.", param="name"
            )
        if url in self._fixed_urls:
            raise Conflict(
                f"{url} is replica '{self._fixed_urls[url]}' of the gateway's settings already.", param="url"
            )

    def _take_in(self, settings: ReplicaSettings) -> Lease:
        replaced = [lease.settings for lease in self if _same(lease.settings, settings)]
        stay = sum(lease.settings.ranks for lease in self if lease.settings not in replaced)
        if stay + settings.ranks > self._most:
            raise Conflict(
                f"The gateway has {stay} registered replicas and takes {self._most} (registration.most).",
                code="too_many_replicas",
            )
        for old in replaced:
            self._leave(old.name, "another registered in its place")
        for replica in self._build(settings):
            self._fleet.add(replica)
            log.info("replica registers", extra={"replica": replica.name, "url": _url(settings)})
        lease = self._leases[settings.name] = Lease(settings)
        return lease

    def _leave(self, name: str, reason: str) -> None:
        lease = self._leases.pop(name)
        lease.end()
        for replica in lease.settings.rank_names():
            self._fleet.remove(replica, reason)
            asyncio.get_running_loop().call_later(FORGET_S, self._forget_if_gone, replica)

    def _forget_if_gone(self, replica: str) -> None:
        if self._fleet.get(replica) is None:
            self._forget(replica)


def _url(settings: ReplicaSettings) -> str:
    return str(settings.url).rstrip("/")


def _same(one: ReplicaSettings, other: ReplicaSettings) -> bool:
    """Whether they stand for one server: an engine that moved, or that has another name now."""
    return one.name == other.name or _url(one) == _url(other)
