"""`hpkv cache` on shared stores: what it shows, what it removes, and what it leaves."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cache.commands import app
from cache.keys import Base
from cache.record import HEADER_BYTES
from cache.stores import Settings, SharedStore, open_store
from cache.stores.lease import Lease
from cache.stores.names import name_of
from cache.stores.store import RecordStore
from cache.testing import BASE, PAGE_BYTES, SPACE, content, key, page
from cache.tiers.base import Outcome, Write

RECORD = HEADER_BYTES + PAGE_BYTES
OTHER = Base(weights="f", kv_dtype="b", kv_layout="l", attention_backend="a", page_tokens=16, engine="test")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def store(url: str) -> Iterator[SharedStore]:
    store = open_store(url, Settings(page_bytes=PAGE_BYTES))
    yield store
    store.close()


def fill(store: SharedStore, start: int, stop: int, tenant: int = 0, base: Base = BASE) -> None:
    writes = [Write(page(n, tenant), [content(n)], 1) for n in range(start, stop)]
    assert set(store.write(base.namespace(), writes)) <= {Outcome.DONE}


def path_of(url: str, store: SharedStore, number: int) -> Path:
    assert isinstance(store, RecordStore)
    return Path(url) / name_of(store._root.generation, SPACE, key(number))


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["cache", *map(str, arguments)], input=stdin)


def left(url: str) -> list[int]:
    keys = {key(n).hex(): n for n in range(100)}
    return sorted(keys[line.split()[2]] for line in run("ls", url).stdout.splitlines())


def test_stat_shows_each_namespace(url: str, store: SharedStore) -> None:
    fill(store, 0, 5)
    fill(store, 0, 7, base=OTHER)
    lines = run("stat", url).output.splitlines()
    for space, count in ((SPACE, 5), (OTHER.namespace(), 7)):
        (line,) = (line for line in lines if space.hex()[:8] in line)
        assert [f" {count} " in line, " 8 KiB " in line] == [True, True]
    assert any(" all " in line and " 12 " in line for line in lines)


def test_ls_lists_pages_of_a_tenant(url: str, store: SharedStore) -> None:
    fill(store, 0, 3, tenant=0xAB)
    fill(store, 3, 5)
    assert left(url) == [0, 1, 2, 3, 4]
    line = run("ls", url, "--tenant", "ab").stdout.splitlines()[0].split()
    assert line[1] == SPACE.hex()
    assert line[4:] == ["00000000000000ab", str(RECORD)]
    assert len(run("ls", url, "--tenant", "ab").stdout.splitlines()) == 3


def test_verify_names_damaged_pages_and_changes_nothing(url: str, store: SharedStore) -> None:
    fill(store, 0, 4)
    assert run("verify", url).exit_code == 0
    flipped, cut = path_of(url, store, 1), path_of(url, store, 2)
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"\0")
    cut.write_bytes(cut.read_bytes()[:5000])
    result = run("verify", url)
    assert result.exit_code == 1
    assert f"{key(1).hex()}: payload damaged" in result.output
    assert f"{key(2).hex()}: of another length" in result.output
    assert "2 of 4 pages are damaged" in result.output
    assert path_of(url, store, 1).exists()


def test_gc_by_size_takes_what_was_used_longest_ago(url: str, store: SharedStore) -> None:
    fill(store, 0, 20)
    for number in range(20):
        os.utime(path_of(url, store, number), (60 * number, 60 * number))
    result = run("gc", url, "--max-bytes", str(5 * RECORD))
    assert result.stdout == "15 pages removed; 240 KiB were taken, 60 KiB are\n"
    assert left(url) == [15, 16, 17, 18, 19]
    assert run("gc", url, "--max-bytes", "0").exit_code == 0
    assert left(url) == []


def test_gc_by_age(url: str, store: SharedStore) -> None:
    fill(store, 0, 5)
    os.utime(path_of(url, store, 3), (1000, 1000))
    assert run("gc", url, "--older-than", "1").stdout == "1 pages removed; 60 KiB were taken, 48 KiB are\n"
    assert left(url) == [0, 1, 2, 4]


def test_gc_waits_for_another_collector(url: str, store: SharedStore) -> None:
    assert isinstance(store, RecordStore)
    assert Lease(store.shelf).take(0)
    result = run("gc", url)
    assert result.exit_code == 2
    assert "collected by another process" in result.output


def test_clear_one_tenant_beside_a_living_engine(url: str, store: SharedStore) -> None:
    fill(store, 0, 3, tenant=7)
    fill(store, 3, 5)
    assert run("clear", url, "--tenant", "7", "--yes").stdout == "3 pages removed\n"
    assert left(url) == [3, 4]


def test_clearing_a_tenant_leaves_nothing_that_may_be_theirs(url: str, store: SharedStore) -> None:
    fill(store, 0, 6)
    damaged, empty = path_of(url, store, 1), path_of(url, store, 2)
    damaged.write_bytes(b"\0" * 100 + damaged.read_bytes()[100:])
    empty.write_bytes(b"")
    lost, fresh = (empty.with_name(f".{empty.name}.{digit * 16}") for digit in "ab")
    for draft in (lost, fresh):
        draft.write_bytes(b"half")
    os.utime(lost, (1000, 1000))
    assert run("clear", url, "--tenant", "7", "--yes").stdout == "0 pages removed\n"
    assert left(url) == [0, 3, 4, 5]
    assert [path.exists() for path in (damaged, empty, lost, fresh)] == [False, False, False, True]


def test_clear_everything(url: str, store: SharedStore) -> None:
    fill(store, 0, 5)
    assert run("clear", url, stdin="n\n").exit_code == 1
    assert "5 pages removed" in run("clear", url, "--yes").output
    assert left(url) == []
    store.tend()
    fill(store, 5, 6)
    assert left(url) == [5]


def test_a_store_is_not_made_by_looking_at_it(tmp_path: Path) -> None:
    assert run("stat", tmp_path / "no").exit_code == 2
    assert not (tmp_path / "no").exists()
