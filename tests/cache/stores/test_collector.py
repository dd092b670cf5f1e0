"""What a collector takes, and what it leaves."""

import itertools
from collections.abc import Iterator

import pytest

from cache.stores import collector
from cache.stores.collector import DRAFT_SECONDS, collect
from cache.stores.names import name_of, parse
from cache.stores.shelf import NEW
from cache.testing import SPACE, key
from tests.cache.stores.memory import Memory

NOW = 5


@pytest.fixture
def shelf() -> Iterator[Memory]:
    shelf = Memory()
    shelf.put("hpkv.json", b"root", NEW)
    shelf.put("notes", b"precious", NEW)
    yield shelf
    assert {"hpkv.json", "notes"} <= set(shelf.things)


def put(shelf: Memory, number: int, age: float = 0.0, generation: int = NOW) -> str:
    name = name_of(generation, SPACE, key(number))
    shelf.time -= age
    shelf.put(name, bytes(100), NEW)
    shelf.time += age
    return name


def run(shelf: Memory, most_bytes: int | None = None, older_than: float | None = None) -> set[str]:
    """Collect; returns what went, and checks the last survey."""
    removed: set[str] = set()
    for step in collect(shelf, lambda: NOW, most_bytes, older_than):
        removed.update(entry.name for entry in step.removed)
    left = [blob for name, blob in shelf.things.items() if parse(name)]
    assert step.survey == (len(left), sum(len(blob.data) for blob in left))
    return removed


def test_without_limits_all_pages_stay(shelf: Memory) -> None:
    put(shelf, 0, age=1e6)
    assert run(shelf) == set()


def test_earlier_generations_go(shelf: Memory) -> None:
    put(shelf, 0)
    void = {put(shelf, number, generation=4) for number in range(3)}
    assert run(shelf) == void


def test_pages_of_a_generation_that_begins_meanwhile_stay(shelf: Memory) -> None:
    void, new = put(shelf, 0), put(shelf, 1, generation=6)
    answers = iter([NOW, 6, 6, 6])
    steps = list(collect(shelf, lambda: next(answers), None, None))
    removed = {entry.name for step in steps for entry in step.removed}
    assert new not in removed
    assert removed <= {void}


def test_old_pages_go(shelf: Memory) -> None:
    put(shelf, 0, age=50)
    old = put(shelf, 1, age=70)
    assert run(shelf, older_than=60) == {old}


def test_down_to_the_cap_those_used_longest_ago_go(shelf: Memory) -> None:
    names = [put(shelf, number, age=6000 - 60 * number) for number in range(50)]
    assert run(shelf, most_bytes=1000) == set(names[:40])
    assert run(shelf, most_bytes=1000) == set()
    assert run(shelf, most_bytes=0) == set(names[40:])


def test_pages_of_one_minute_go_one_by_one(shelf: Memory) -> None:
    for number in range(50):
        put(shelf, number)
    assert len(run(shelf, most_bytes=950)) == 41


def test_only_drafts_without_a_writer_go(shelf: Memory) -> None:
    name = name_of(NOW, SPACE, key(0))
    folder, _, digits = name.rpartition("/")
    drafts = [f"{folder}/.{digits}.{number:016x}" for number in range(2)]
    shelf.put(drafts[0], b"", NEW)
    shelf.time -= DRAFT_SECONDS + 1
    shelf.put(drafts[1], b"", NEW)
    shelf.put(".profile", b"precious", NEW)
    shelf.time += DRAFT_SECONDS + 1
    assert run(shelf) == {drafts[1]}
    assert ".profile" in shelf.things


def test_it_goes_by_steps(shelf: Memory) -> None:
    for number in range(2500):
        put(shelf, number)
    assert len(list(collect(shelf, lambda: NOW, None, None))) == 3


def test_a_step_on_a_slow_store_is_short(shelf: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        put(shelf, number)
    now = itertools.count(0.0, 0.1)
    monkeypatch.setattr(collector.time, "monotonic", lambda: next(now))
    steps = list(collect(shelf, lambda: NOW, None, None))
    assert len(steps) > 10
    assert steps[-1].survey.pages == 100
