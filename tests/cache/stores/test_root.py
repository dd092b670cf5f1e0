"""A store's root: what is ours, and what is refused."""

import json
from collections.abc import Iterator

import pytest

from cache.errors import ForeignError, VersionError
from cache.stores import root as roots
from cache.stores.root import Root, parse
from cache.stores.shelf import NEW, Entry
from tests.cache.stores.memory import Memory


def test_comes_back_as_it_was() -> None:
    root = Root.new("hpkv-posix")
    assert parse(root.dump(), "hpkv-posix", "here") == root
    assert Root.new("hpkv-posix").store_id != root.store_id


def test_a_clear_keeps_the_id_and_changes_the_generation() -> None:
    root = Root.new("hpkv-posix")
    assert root.cleared().store_id == root.store_id
    assert root.cleared().generation != root.generation


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"[]", b"\xff\xfe", b'{"kind": "hpkv-posix", "format": 1, "id": 5, "generation": "0"}'],
)
def test_what_is_not_ours_is_refused(raw: bytes) -> None:
    with pytest.raises(ForeignError, match=r"here: its hpkv\.json is damaged or not ours"):
        parse(raw, "hpkv-posix", "here")


def test_other_kinds_and_formats_are_named() -> None:
    root = Root.new("hpkv-object")
    with pytest.raises(ForeignError, match="kind 'hpkv-object', not 'hpkv-posix'"):
        parse(root.dump(), "hpkv-posix", "here")
    later = json.dumps(json.loads(root.dump()) | {"format": 99}).encode()
    with pytest.raises(VersionError, match="format 99"):
        parse(later, "hpkv-object", "here")


def test_a_store_that_another_makes_at_the_same_time_is_no_stranger() -> None:
    class Overtaken(Memory):
        rival: Memory

        def entries(self) -> Iterator[Entry]:
            roots.claim(self.rival, "hpkv-posix")
            self.rival.put("a page", b"", NEW)
            return super().entries()

    shelf, rival = Overtaken(), Memory()
    shelf.rival, rival.things = rival, shelf.things
    assert roots.claim(shelf, "hpkv-posix") == roots.load(rival, "hpkv-posix")


def test_a_place_with_something_else_in_it_is_refused() -> None:
    shelf = Memory()
    shelf.put("holiday.jpg", b"", NEW)
    with pytest.raises(ForeignError, match=r"holds 'holiday\.jpg' and no hpkv\.json"):
        roots.claim(shelf, "hpkv-posix")
    assert list(shelf.things) == ["holiday.jpg"]
