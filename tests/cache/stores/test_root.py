"""A store's root: what is ours, and what is refused."""

import json

import pytest

from cache.errors import ForeignError, VersionError
from cache.stores.root import Root, parse


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
