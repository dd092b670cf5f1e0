import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapters.registration import Registration, Replica, reachable
from engine_adapters.settings import GatewaySettings
from tests.fakes.lessor import Gateway
from tests.waiting import until

KEY = "an-admin-key"
REPLICA = Replica(url="http://gpu1:8001", engine="vllm", events="tcp://gpu1:5557", replay="tcp://gpu1:5558")


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with contextlib.closing(Gateway()) as made:
        yield made


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    return file


@contextlib.contextmanager
def registered(url: str, key_file: Path | None) -> Iterator[Registration]:
    settings = GatewaySettings(url=url, replica_url=REPLICA.url, admin_key_file=key_file)
    with contextlib.closing(Registration(settings, REPLICA, lease_s=0.3)) as registration:
        yield registration


def test_a_lease_is_taken_renewed_and_given_back(gateway: Gateway, key_file: Path) -> None:
    with registered(gateway.url, key_file):
        until(lambda: len(gateway.heard) >= 3)
    *asked, last = gateway.heard
    assert {(one.method, one.path, one.key) for one in asked} == {
        ("POST", "/base/v1/replicas", f"Bearer {KEY}")
    }
    assert asked[0].body == {
        "url": "http://gpu1:8001",
        "engine": "vllm",
        "events": "tcp://gpu1:5557",
        "replay": "tcp://gpu1:5558",
        "lease_s": 0.3,
    }
    assert last[:3] == ("DELETE", "/base/v1/replicas/gpu1%3A8001", f"Bearer {KEY}")


def test_renewals_go_by_the_lease_that_was_granted(gateway: Gateway, key_file: Path) -> None:
    gateway.answer["lease_s"] = 1.5
    with registered(gateway.url, key_file):
        until(lambda: len(gateway.heard) >= 2)
    assert gateway.heard[1].at - gateway.heard[0].at >= 0.5


def test_nothing_that_a_gateway_is_or_says_ends_it(
    gateway: Gateway, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.answer["lease_s"] = 1e300
    with registered(gateway.url, key_file):
        until(lambda: len(gateway.heard) >= 1)
    assert [one.method for one in gateway.heard] == ["POST", "DELETE"]
    with registered("http://no..name:80", key_file) as registration:
        until(lambda: "no answer (UnicodeError" in caplog.text)
        assert registration._thread.is_alive()


def test_a_gateway_that_is_away_is_asked_until_it_is_back(key_file: Path) -> None:
    with contextlib.closing(Gateway()) as gone, registered(gone.url, key_file):
        until(lambda: len(gone.heard) >= 1)
        gone.close()
        with contextlib.closing(Gateway(gone.port)) as back:
            until(lambda: len(back.heard) >= 2)


def test_a_gateway_that_never_came_is_not_told_goodbye(gateway: Gateway, key_file: Path) -> None:
    gateway.status = 503
    with registered(gateway.url, key_file):
        until(lambda: len(gateway.heard) >= 2)
    assert {one.method for one in gateway.heard} == {"POST"}


def test_closing_waits_for_nobody(key_file: Path) -> None:
    with contextlib.closing(Gateway()) as gateway:
        port = gateway.port
    with registered(f"http://127.0.0.1:{port}", key_file):
        begun = time.monotonic()
    assert time.monotonic() - begun < 6


def test_what_is_wrong_is_said_once_and_without_the_key(
    gateway: Gateway, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway.status, gateway.answer = 409, {"error": {"message": "That replica\nis in the settings."}}
    with registered(gateway.url, key_file):
        until(lambda: len(gateway.heard) >= 3)
        gateway.status, gateway.answer = 200, ["something else"]
        until(lambda: "something else than a lease" in caplog.text)
    said = [one.getMessage() for one in caplog.records]
    assert said[0] == f"not registered at {gateway.url}: it answered 409: That replica is in the settings."
    assert len(said) == 2
    assert KEY not in caplog.text


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff\xfe", "schlüssel".encode()])
def test_a_key_that_cannot_be_sent_is_kept_to_ourselves(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with registered(gateway.url, file):
        until(lambda: "not registered" in caplog.text)
    assert str(file) in caplog.text
    assert "lines" not in caplog.text
    assert "schl" not in caplog.text
    assert gateway.heard == []


def test_redirects_are_not_followed(
    gateway: Gateway, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    gateway.status = 307
    with registered(gateway.url, key_file):
        until(lambda: len(gateway.heard) >= 2)
    assert {one.path for one in gateway.heard} == {"/base/v1/replicas"}


@pytest.mark.parametrize(
    ("bound", "found"),
    [
        ("tcp://*:5557", "tcp://gpu1:5557"),
        ("tcp://0.0.0.0:5557", "tcp://gpu1:5557"),
        ("tcp://[::]:5557", "tcp://gpu1:5557"),
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("ipc:///run/a.events", "ipc:///run/a.events"),
    ],
)
def test_where_others_find_what_is_bound(bound: str, found: str) -> None:
    assert reachable(bound, "http://gpu1:8001") == found


def test_an_address_of_version_six_is_written_in_brackets() -> None:
    assert reachable("tcp://*:1", "http://[fe80::1]:8001") == "tcp://[fe80::1]:1"
