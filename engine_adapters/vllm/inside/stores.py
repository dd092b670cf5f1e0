"""Pages on their way from the engine into `host`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cache.hierarchy import Hierarchy
from cache.storing import Reservation

from .requests import Request


class Wanted(NamedTuple):
    """Pages whose bytes are wanted, and the host slots for them."""

    keys: Sequence[bytes]
    slots: Sequence[int]


NOTHING = Wanted((), ())


class Stores:
    """Reservations that the engine is filling, by page key."""

    def __init__(self, tiers: Hierarchy) -> None:
        self._tiers = tiers
        self._filling: dict[bytes, Reservation] = {}
        self._orphans: list[Reservation] = []

    def begin(self, request: Request, keys: Sequence[bytes], numbers: Sequence[int]) -> Wanted:
        """Reserve slots for those of the request's pages that `host` hasn't got and has room for."""
        namespace = request.namespace
        if namespace is None:
            return NOTHING
        reservation = self._tiers.reserve(namespace, request.pages(numbers, keys))
        wanted = [keys[index] for index in reservation.indices]
        if not wanted:
            self._tiers.commit(reservation)
        self._filling.update((key, reservation) for key in wanted)
        return Wanted(wanted, reservation.slots)

    def end(self, keys: Iterable[bytes], good: bool) -> None:
        """The slots of one `begin` are filled, or won't be."""
        found = [self._filling.pop(key) for key in keys if key in self._filling]
        if found:
            self._commit(found[0], good)

    def orphan(self) -> None:
        """The engine forgets its copies, which may go on writing: keep their slots until `flushed`."""
        self._orphans += {id(one): one for one in self._filling.values()}.values()
        self._filling.clear()

    def flushed(self) -> None:
        """No forgotten copy writes any more."""
        for reservation in self._orphans:
            self._commit(reservation, good=False)
        self._orphans.clear()

    def _commit(self, reservation: Reservation, good: bool) -> None:
        self._tiers.commit(reservation, [good] * len(reservation.slots))
