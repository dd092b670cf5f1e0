"""`hpkv cache` on a bucket."""

import obstore
import pytest
from typer.testing import CliRunner, Result

from cache.commands import app
from cache.stores.object import Object
from cache.testing import key
from cache.tiers.base import Outcome
from tests.cache.stores.object.conftest import S3
from tests.cache.stores.object.test_store import get, make, name, put


@pytest.fixture
def url(s3: S3, prefix: str) -> str:
    return s3.url(prefix)


@pytest.fixture
def store(url: str) -> Object:
    store = make(url)
    assert put(store, 0, 3, tenant=7) == [Outcome.DONE] * 3
    assert put(store, 3, 6) == [Outcome.DONE] * 3
    return store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cache", *arguments])


def left(url: str) -> list[int]:
    keys = {key(n).hex(): n for n in range(100)}
    return sorted(keys[line.split()[2]] for line in run("ls", url).stdout.splitlines())


def test_looks(url: str, store: Object) -> None:
    assert " 6 " in run("stat", url).output
    assert left(url) == [0, 1, 2, 3, 4, 5]
    assert len(run("ls", url, "--tenant", "7").stdout.splitlines()) == 3


def test_verifies(url: str, store: Object) -> None:
    assert run("verify", url).output == "all 6 pages are whole\n"
    record = bytearray(obstore.get(store._client, name(store, key(1))).bytes())
    record[5000] ^= 1
    obstore.put(store._client, name(store, key(1)), bytes(record))
    result = run("verify", url)
    assert result.exit_code == 1
    assert f"{key(1).hex()}: payload damaged" in result.output


def test_collects(url: str, store: Object) -> None:
    assert "0 pages removed" in run("gc", url, "--older-than", "1").output
    assert "4 pages removed" in run("gc", url, "--max-bytes", str(2 * store.record_bytes())).output
    assert len(left(url)) == 2


def test_clears(url: str, store: Object) -> None:
    assert run("clear", url, "--tenant", "7", "--yes").output == "3 pages removed\n"
    assert left(url) == [3, 4, 5]
    assert run("clear", url, "--yes").output == "3 pages removed\n"
    assert left(url) == []
    store._watch_after = 0.0
    store.tend()
    assert get(store, 3) is Outcome.MISSING


def test_refusals_are_one_line_without_secrets(
    s3: S3, prefix: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = run("stat", url)
    assert (nothing.exit_code, "has no hpkv.json" in nothing.output) == (2, True)
    missing = run("stat", s3.url(prefix, bucket="no-such-bucket"))
    assert (missing.exit_code, "make the bucket" in missing.output) == (2, True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thisisverysecret")
    refused = run("stat", url)
    assert (refused.exit_code, "refuses these credentials" in refused.output) == (2, True)
    for result in (nothing, missing, refused):
        assert len(result.output.splitlines()) == 1
        assert "thisisverysecret" not in result.output
        assert s3.key not in result.output


def test_an_empty_object_holds_up_nothing(url: str, store: Object) -> None:
    obstore.put(store._client, name(store, key(4)), b"")
    assert left(url) == [0, 1, 2, 3, 5]
    assert run("clear", url, "--tenant", "7", "--yes").output == "3 pages removed\n"
    assert left(url) == [3, 5]
