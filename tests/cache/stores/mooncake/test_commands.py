"""`hpkv cache` on a Mooncake store."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cache.commands import app
from cache.stores.mooncake import Mooncake
from cache.testing import SPACE, content, key, page
from cache.tiers.base import Outcome, Write
from tests.cache.stores.mooncake.pool import Borrowed, Master, get, key_of, put

Run = Callable[..., Result]


@pytest.fixture
def run(master: Master, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command on a store by its prefix, with the client that all tests share."""
    client = master.share("commands")._client.client
    monkeypatch.setattr("cache.stores.mooncake.connect", lambda options: Borrowed(client))

    def run(what: str, prefix: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["cache", what, master.url(prefix), *arguments])

    return run


def filled(master: Master, prefix: str) -> Mooncake:
    """Three pages of tenant ab, two without a tenant, and a neighbour's."""
    store = master.share(prefix)
    store.write(SPACE, [Write(page(n, 0xAB), [content(n)], 1) for n in range(3)])
    put(store, 3, 5)
    put(master.share(prefix + "-neighbour"), 0, 4)
    return store


def test_stat_counts(master: Master, run: Run) -> None:
    filled(master, "stat")
    result = run("stat", "stat")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.output.splitlines() if SPACE.hex()[:8] in line]
    assert " 5 " in line


def test_ls_lists_pages_of_a_tenant(master: Master, run: Run) -> None:
    filled(master, "ls")
    assert len(run("ls", "ls").stdout.splitlines()) == 5
    lines = run("ls", "ls", "--tenant", "ab").stdout.splitlines()
    assert sorted(line.split()[2] for line in lines) == sorted(key(n).hex() for n in range(3))


def test_verify_names_damaged_pages_and_changes_nothing(master: Master, run: Run) -> None:
    store = filled(master, "verify")
    assert "all 5 pages are whole" in run("verify", "verify").output
    name = key_of(store, key(1))
    record = bytearray(store._client.get(name))
    record[9000] ^= 1
    store._client.upsert(name, bytes(record))
    result = run("verify", "verify")
    assert result.exit_code == 1
    assert key(1).hex() in result.output
    assert store._client.is_exist(name) == 1


def test_clear_a_tenant(master: Master, run: Run) -> None:
    store = filled(master, "tenant")
    assert "3 pages removed" in run("clear", "tenant", "--tenant", "ab", "--yes").output
    assert [get(store, n) for n in range(5)] == [Outcome.MISSING] * 3 + [Outcome.DONE] * 2


def test_clear_everything(master: Master, run: Run) -> None:
    store = filled(master, "clear")
    assert "5 pages removed" in run("clear", "clear", "--yes").output
    store.tend()
    assert [get(store, n) for n in range(5)] == [Outcome.MISSING] * 5
    assert get(master.share("clear-neighbour"), 0) is Outcome.DONE
    assert "there are no pages" in run("verify", "clear").output


def test_gc_removes_what_a_clear_has_left(master: Master, run: Run) -> None:
    store = filled(master, "gc")
    old = f"{store._root.generation ^ 1:016x}/{SPACE.hex()}/ab/abcd"
    assert store._client.put(store._mooncake.key(old), b"x" * 100) == 0
    assert "0 pages removed" in run("gc", "gc").output
    assert store._client.is_exist(store._mooncake.key(old)) == 0
    assert [get(store, n) for n in range(5)] == [Outcome.DONE] * 5


@pytest.mark.parametrize("limit", ["--max-bytes", "--older-than"])
def test_gc_says_that_mooncake_evicts_by_itself(master: Master, run: Run, limit: str) -> None:
    filled(master, "limits")
    result = run("gc", "limits", limit, "10")
    assert result.exit_code == 2
    assert "evicts by itself" in result.output


def test_what_cannot_be_listed_is_said(master: Master, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(master, "unlisted")

    def refuse(*arguments: object) -> bytes:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("cache.stores.mooncake.shelf.ask", refuse)
    for command in (("stat",), ("ls",), ("verify",), ("clear", "--tenant", "ab", "--yes")):
        result = run(command[0], "unlisted", *command[1:])
        assert result.exit_code == 2
        assert "can't be listed" in result.output
    assert "5 pages removed" in run("clear", "unlisted", "--yes").output
    store.tend()
    assert get(store, 0) is Outcome.MISSING


def test_a_store_that_is_not_there(master: Master, run: Run) -> None:
    result = run("stat", "nothing-here")
    assert result.exit_code == 2
    assert "isn't a store" in result.output


@pytest.mark.slow
def test_the_command_itself(master: Master) -> None:
    filled(master, "process")
    command = [
        sys.executable,
        str(Path(__file__).parents[4] / "hpkv.py"),
        "cache",
        "ls",
        master.url("process"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 5
