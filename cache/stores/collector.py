"""Takes out of a store what nobody can use, what is too old, and what is too much.

Everything is listed once, to count it by the minute in which it was used last. If it is too much, it is
listed once more, and what was used before the minute in which the cap is reached goes. So a collector needs
little memory however large the store is, and one that is killed has done no harm.
"""

import enum
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from cache.stores.lease import Survey
from cache.stores.names import parse
from cache.stores.shelf import DRAFT, Entry, Shelf

DRAFT_SECONDS = 3600.0
"""What is being written for so long has lost its writer."""

_BATCH_SECONDS = 0.5
"""A step is shorter than what counts as hanging, however slow the store is."""


class Step(NamedTuple):
    """Some of the work, done."""

    removed: Sequence[Entry]
    evicted: int
    """How many of them somebody could still have read."""
    survey: Survey
    """What has been counted so far; after the last step, what is left."""


class _Fate(enum.Enum):
    STAYS = enum.auto()
    IS_OLD = enum.auto()
    IS_USELESS = enum.auto()
    IS_NOT_OURS = enum.auto()


class _Judge:
    """Decides on entries, one by one."""

    def __init__(self, generation: Callable[[], int], now: float, older_than: float | None) -> None:
        self._read = generation
        self._current = generation()
        self._over = set[int]()
        self._now = now
        self._older_than = older_than

    def fate(self, entry: Entry) -> _Fate:
        name, age = parse(entry.name), self._now - entry.used
        if name is None:
            lost = DRAFT.fullmatch(entry.name) and age > DRAFT_SECONDS
            return _Fate.IS_USELESS if lost else _Fate.IS_NOT_OURS
        if self._is_over(name.generation):
            return _Fate.IS_USELESS
        return _Fate.STAYS if self._older_than is None or age <= self._older_than else _Fate.IS_OLD

    def _is_over(self, generation: int) -> bool:
        """Whether a clear has voided it. A generation that isn't known may be a newer one: look again."""
        if generation != self._current and generation not in self._over:
            self._current = self._read()
            if generation != self._current:
                self._over.add(generation)
        return generation != self._current


def collect(
    shelf: Shelf, generation: Callable[[], int], most_bytes: int | None, older_than: float | None
) -> Iterator[Step]:
    """Collect, step by step; `generation` reads the store's current one."""
    judge = _Judge(generation, shelf.now(), older_than)
    minutes, pages = Counter[int](), 0
    for batch in _batches(shelf):
        fates = [judge.fate(entry) for entry in batch]
        for entry, fate in zip(batch, fates, strict=True):
            if fate is _Fate.STAYS:
                minutes[_minute(entry)] += entry.bytes
                pages += 1
        goes = {_Fate.IS_OLD, _Fate.IS_USELESS}
        removed = _remove(shelf, [entry for entry, fate in zip(batch, fates, strict=True) if fate in goes])
        yield Step(removed, fates.count(_Fate.IS_OLD), Survey(pages, minutes.total()))
    survey = Survey(pages, minutes.total())
    if most_bytes is not None and survey.bytes > most_bytes:
        survey = yield from _trim(shelf, judge, minutes, survey, most_bytes)
    for _ in shelf.tidy():
        yield Step((), 0, survey)


def _trim(
    shelf: Shelf, judge: _Judge, minutes: Counter[int], survey: Survey, most_bytes: int
) -> Generator[Step, None, Survey]:
    """Remove what was used longest ago, until no more than `most_bytes` are left; returns what is."""
    excess, cut = survey.bytes - most_bytes, 0
    for cut in sorted(minutes):
        if minutes[cut] >= excess:
            break
        excess -= minutes[cut]

    def goes(entry: Entry) -> bool:
        nonlocal excess
        if _minute(entry) > cut or judge.fate(entry) is not _Fate.STAYS:
            return False
        if _minute(entry) == cut:
            excess -= entry.bytes
            return excess + entry.bytes > 0
        return True

    for batch in _batches(shelf):
        removed = _remove(shelf, list(filter(goes, batch)))
        survey = Survey(survey.pages - len(removed), survey.bytes - sum(entry.bytes for entry in removed))
        yield Step(removed, len(removed), survey)
    return survey


def _minute(entry: Entry) -> int:
    return int(entry.used // 60)


def _remove(shelf: Shelf, entries: Sequence[Entry]) -> list[Entry]:
    removed = shelf.remove([entry.name for entry in entries])
    return [entry for entry, gone in zip(entries, removed, strict=True) if gone]


def _batches(shelf: Shelf) -> Iterator[list[Entry]]:
    batch: list[Entry] = []
    until = time.monotonic() + _BATCH_SECONDS
    for entry in shelf.entries():
        batch.append(entry)
        if len(batch) == shelf.batch or time.monotonic() > until:
            yield batch
            batch, until = [], time.monotonic() + _BATCH_SECONDS
    if batch:
        yield batch
