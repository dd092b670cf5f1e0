import threading
import time

import pytest

from cache.errors import SettingsError
from cache.testing import BASE
from engine_adapters.vllm.inside.namespaces import Lora, Namespaces


def wait_for(namespaces: Namespaces, lora: Lora) -> bytes:
    deadline = time.monotonic() + 10
    while (found := namespaces.of(lora)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def test_loras_are_told_apart_by_content() -> None:
    namespaces = Namespaces(BASE, {"/a": "one", "/copy-of-a": "one", "/b": "two"}.__getitem__)
    a, copy, b = (wait_for(namespaces, Lora(path, path)) for path in ("/a", "/copy-of-a", "/b"))
    assert a == copy
    assert len({a, b, namespaces.of(None)}) == 3


def test_a_lora_is_read_once_and_without_waiting() -> None:
    may_read, reads = threading.Event(), []

    def read(path: str) -> str:
        may_read.wait(10)
        reads.append(path)
        return path

    namespaces, lora = Namespaces(BASE, read), Lora("a", "/a")
    assert namespaces.of(lora) is None
    assert namespaces.of(lora) is None
    may_read.set()
    wait_for(namespaces, lora)
    assert reads == ["/a"]


@pytest.mark.parametrize("error", [SettingsError("no weights"), FileNotFoundError("adapter_config.json")])
def test_a_lora_that_cannot_be_read_is_served_without_tiers(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def read(path: str) -> str:
        raise error

    namespaces, lora = Namespaces(BASE, read), Lora("pirate", "/gone")
    namespaces.of(lora)
    deadline = time.monotonic() + 10
    while "pirate" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert namespaces.of(lora) is None
