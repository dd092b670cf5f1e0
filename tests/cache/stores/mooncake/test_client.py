"""What an operator reads when there is no way to be a client."""

import importlib.abc
import importlib.machinery
import socket
import sys
import time
from collections.abc import Sequence
from types import ModuleType

import pytest

from cache.errors import FolderError, SettingsError
from cache.stores import address, open_store
from cache.stores.mooncake import client
from cache.stores.mooncake.client import connect
from cache.stores.mooncake.options import Options
from tests.cache.stores.mooncake.pool import SETTINGS, Master


def options(url: str) -> Options:
    return Options.parse(address.parse(url))


def test_no_master(master: Master) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(
            FolderError, match=r"no Mooncake master answers \(.*refused\): start mooncake_master"
        ):
            open_store(f"mooncake://127.0.0.1:{port}/p", SETTINGS)
        with pytest.raises(
            FolderError, match=rf"on 127.0.0.1:{port} doesn't say .* name it: \?admin=HOST:PORT"
        ):
            open_store(f"mooncake://127.0.0.1:{master.port}/p?admin=127.0.0.1:{port}", SETTINGS)


def test_what_listens_is_no_master(master: Master) -> None:
    with pytest.raises(FolderError, match="doesn't say that it is well"):
        open_store(f"mooncake://127.0.0.1:{master.admin}/p?admin=127.0.0.1:{master.port}", SETTINGS)


@pytest.mark.slow
def test_a_master_that_hangs(lone_master: Master) -> None:
    lone_master.hang()
    begin = time.monotonic()
    with pytest.raises(FolderError, match=r"doesn't say that it is well \(timed out\)"):
        open_store(lone_master.url("p"), SETTINGS)
    assert time.monotonic() - begin < 3 * client.ANSWER_SECONDS


class Missing(importlib.abc.MetaPathFinder):
    """Makes the import of a module fail."""

    def __init__(self, error: ImportError) -> None:
        self.error = error

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "mooncake.store":
            raise self.error
        return None


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module", name="mooncake"), r"pip install mooncake-transfer-engine "),
        (
            ImportError("libibverbs.so.1: cannot open shared object file"),
            "libibverbs.so.1.*libcurl4, libibverbs1",
        ),
    ],
)
def test_no_client(monkeypatch: pytest.MonkeyPatch, error: ImportError, message: str) -> None:
    monkeypatch.delitem(sys.modules, "mooncake.store", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(error), *sys.meta_path])
    with pytest.raises(SettingsError, match=message):
        connect(options("mooncake://127.0.0.1/p"))


def test_a_client_that_does_not_start(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def setup(self, **settings: object) -> int:
            return -600

    monkeypatch.setattr("mooncake.store.MooncakeDistributedStore", Broken)
    with pytest.raises(FolderError, match=r"doesn't start \(code -600.*host=127.0.0.1, protocol=tcp"):
        connect(options(master.url("p")))
