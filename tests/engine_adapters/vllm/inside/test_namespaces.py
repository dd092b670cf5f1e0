import threading
import time

import pytest

from cache.errors import SettingsError
from cache.testing import BASE
from engine_adapters.vllm.inside.namespaces import Adapter, Lora, Namespaces


def wait_for(namespaces: Namespaces, lora: Lora) -> bytes:
    deadline = time.monotonic() + 10
    while (found := namespaces.of(lora)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return found


def test_loras_are_told_apart_by_content() -> None:
    namespaces = Namespaces(BASE, {"/a": "one", "/copy-of-a": "one", "/b": "two"}.__getitem__)
    a, copy, b = (wait_for(namespaces, Lora(path, path, 1)) for path in ("/a", "/copy-of-a", "/b"))
    assert a == copy
    assert len({a, b, namespaces.of(None)}) == 3


def test_a_lora_is_read_once_and_without_waiting() -> None:
    may_read, reads = threading.Event(), []

    def read(path: str) -> str:
        may_read.wait(10)
        reads.append(path)
        return path

    namespaces, lora = Namespaces(BASE, read), Lora("a", "/a", 1)
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

    namespaces, lora = Namespaces(BASE, read), Lora("pirate", "/gone", 1)
    namespaces.of(lora)
    deadline = time.monotonic() + 10
    while "pirate" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert namespaces.of(lora) is None


def test_a_lora_that_was_replaced_is_served_without_tiers(caplog: pytest.LogCaptureFixture) -> None:
    content = {"/a": "one"}
    namespaces = Namespaces(BASE, lambda path: content[path])
    first = wait_for(namespaces, Lora("a", "/a", 1))
    assert wait_for(namespaces, Lora("a", "/a", 2)) == first, "loaded again, and the same"
    content["/a"] = "two"
    replaced = Lora("a", "/a", 3)
    namespaces.of(replaced)
    deadline = time.monotonic() + 10
    while "give it another name" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert namespaces.of(replaced) is None
    assert wait_for(namespaces, Lora("b", "/a", 4)) != first


def test_adapters_are_found_by_name_once_their_content_is_known() -> None:
    may_read = threading.Event()

    def read(path: str) -> str:
        may_read.wait(10)
        return path

    namespaces, old, new = Namespaces(BASE, read), Lora("a", "/old", 1), Lora("a", "/new", 2)
    namespaces.of(old)
    assert namespaces.adapters() == {}
    may_read.set()
    found = wait_for(namespaces, old)
    assert namespaces.adapters() == {"a": Adapter(old, found)}
    wait_for(namespaces, new)
    assert namespaces.adapters()["a"].lora == new
    wait_for(namespaces, old)
    assert namespaces.adapters()["a"].lora == old
