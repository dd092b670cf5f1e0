import pytest

from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints, value_of


@pytest.mark.parametrize("endpoint", ["ipc:///run/a", "tcp://*:5557"])
def test_endpoints_that_an_engine_binds(endpoint: str) -> None:
    assert Endpoints(endpoint, "ipc:///run/replay").events == endpoint


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5557", "tcp://gpu1:5557", "inproc://a", "", "tcp://*"])
def test_an_endpoint_that_an_engine_would_connect_to_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=r"write ipc://PATH .* or tcp://\*:PORT"):
        Endpoints(endpoint, "ipc:///run/replay")


def test_events_and_replay_are_apart() -> None:
    with pytest.raises(SettingsError, match="give replay another"):
        Endpoints("tcp://*:5557", "tcp://*:5557")


def test_the_last_value_counts() -> None:
    assert value_of(["--port", "1", "--x", "--port=2"], "--port", "8000") == "2"
    assert value_of(["--port=2", "--port", "1"], "--port", "8000") == "1"
    assert value_of(["--ports=2"], "--port", "8000") == "8000"
