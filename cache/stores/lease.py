"""One collector at a time, over all machines: a small thing in the store that says who works and since when.

It holds who that is, whether they still work, and what the last survey counted. When it was changed last is
told by the store's clock, so machines' clocks don't matter. Whoever works renews it; a collector that was
killed doesn't, and is succeeded after `LEASE_SECONDS`. Where a store can't replace a thing atomically, two
that reach for a lease in the same moment are told apart by reading it back after `SETTLE_SECONDS`, and by
each renewal. Should both work for a moment, nothing worse happens than that more is removed than need be.
"""

import json
import secrets
import time
from typing import NamedTuple

from cache.stores.shelf import NEW, Blob, Missing, Shelf

NAME = "collector.json"
LEASE_SECONDS = 60.0
SETTLE_SECONDS = 0.2


class Survey(NamedTuple):
    """What a collector has counted."""

    pages: int = 0
    bytes: int = 0


class Lease:
    """The right to collect, for whoever holds it."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._who = secrets.token_hex(8)
        self._version = NEW
        self._renewed = 0.0

    def take(self, every: float) -> bool:
        """Take it, if nobody works and the last one finished `every` seconds ago."""
        try:
            blob = self._shelf.get(NAME)
        except Missing:
            return self._write(NEW, _State(busy=True)) and self._settled()
        found = _parse(blob)
        age = self._shelf.now() - blob.modified
        if abs(age) < (LEASE_SECONDS if found.busy else every):  # far ahead: by a clock that was wrong
            return False
        return self._write(blob.version, found._replace(busy=True)) and self._settled()

    def renew(self) -> bool:
        """Say that the work goes on. False if somebody else has taken it."""
        if time.monotonic() - self._renewed < LEASE_SECONDS / 6:
            return True
        blob = self._mine()
        return blob is not None and self._write(blob.version, _parse(blob))

    def finish(self, survey: Survey) -> None:
        """The work is done; this is what is left."""
        blob = self._mine()
        if blob is not None:
            self._write(blob.version, _State(round=_parse(blob).round + 1, survey=survey))

    def _settled(self) -> bool:
        time.sleep(SETTLE_SECONDS)
        return self._mine() is not None

    def _mine(self) -> Blob | None:
        try:
            blob = self._shelf.get(NAME)
        except Missing:
            return None
        return blob if _parse(blob).who == self._who else None

    def _write(self, over: str, state: "_State") -> bool:
        data = {"who": self._who, "busy": state.busy, "round": state.round, **state.survey._asdict()}
        self._renewed = time.monotonic()
        return self._shelf.put(NAME, json.dumps(data).encode() + b"\n", over)


def last_survey(shelf: Shelf) -> tuple[int, Survey]:
    """What the last collector has counted, and how many had before: two may count the same."""
    try:
        state = _parse(shelf.get(NAME))
    except Missing:
        state = _State()
    return state.round, state.survey


class _State(NamedTuple):
    """What a lease says."""

    who: str = ""
    busy: bool = False
    round: int = 0
    survey: Survey = Survey()


def _parse(blob: Blob) -> _State:
    """What can't be read is nobody's."""
    try:
        found = json.loads(blob.data)
        survey = Survey(int(found["pages"]), int(found["bytes"]))
        return _State(str(found["who"]), bool(found["busy"]), int(found["round"]), survey)
    except (ValueError, KeyError, TypeError):
        return _State()
