import os
from pathlib import Path

from engine_adapters.up import gateway
from engine_adapters.up.gateway import Upstream
from gateway.settings import load_settings


def test_the_gateway_reads_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "hpkv.yaml"
    upstreams = [
        Upstream(
            "a", "http://127.0.0.1:8101", "ipc:///run/a.events", "ipc:///run/a.replay", agent="ipc:///run/a"
        ),
        Upstream("b", "http://127.0.0.1:8102"),
        Upstream("c", "http://127.0.0.1:8103", "tcp://127.0.0.1:5557"),
    ]
    gateway.write_config(file, 8050, upstreams)
    settings = load_settings(file, environ={})
    assert settings.listen.host == "127.0.0.1"
    assert settings.listen.port == 8050
    assert [(one.name, str(one.url)) for one in settings.replicas] == [
        ("a", "http://127.0.0.1:8101/"),
        ("b", "http://127.0.0.1:8102/"),
        ("c", "http://127.0.0.1:8103/"),
    ]
    assert [one.events for one in settings.replicas] == ["ipc:///run/a.events", None, "tcp://127.0.0.1:5557"]
    assert [one.agent for one in settings.replicas] == ["ipc:///run/a", None, None]
    assert [one.replay for one in settings.replicas] == ["ipc:///run/a.replay", None, None]


def test_its_command_exists() -> None:
    executable, *_ = gateway.command(Path("x"))
    assert os.access(executable, os.X_OK)
