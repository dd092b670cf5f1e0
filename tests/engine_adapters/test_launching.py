import json
import os
from pathlib import Path

import pytest

from engine_adapters import launching
from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints
from engine_adapters.launching import Server


@pytest.mark.parametrize(
    "head",
    [
        "#!/opt/venv/bin/python3.12\nimport sys\n",
        "#!/bin/sh\n'''exec' /opt/venv/bin/python3.12 \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"/opt/venv/bin/python3.12\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_the_python_behind_a_command(tmp_path: Path, head: str) -> None:
    script = tmp_path / "vllm"
    script.write_text(head)
    assert launching.python_of(script) == "/opt/venv/bin/python3.12"
    script.write_bytes(b"\x7fELF")
    with pytest.raises(SettingsError, match="not a command that pip has installed"):
        launching.python_of(script)


def test_sockets_by_default_are_private_and_named_by_the_port(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    folder = tmp_path / f"hpkv-{os.getuid()}"
    endpoints = launching.endpoints("", "", "vllm-8101", environ)
    assert endpoints.events == f"ipc://{folder}/vllm-8101.events"
    assert endpoints.replay == f"ipc://{folder}/vllm-8101.replay"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(SettingsError, match="is not ours alone"):
        launching.endpoints("", "", "vllm", environ)
    with pytest.raises(SettingsError, match=r"x{80}.* is too long .*set XDG_RUNTIME_DIR"):
        launching.endpoints("", "", "vllm", {"XDG_RUNTIME_DIR": f"/run/{'x' * 80}"})


def test_a_folder_for_sockets_that_cannot_be_made() -> None:
    with pytest.raises(SettingsError, match=r"can't be made .No such file.*XDG_RUNTIME_DIR"):
        launching.endpoints("", "", "vllm", {"XDG_RUNTIME_DIR": "/run/of-nobody"})


TCP = Endpoints("tcp://*:5557", "ipc:///run/replay")
IPC = Endpoints("ipc:///run/events", "ipc:///run/replay")


@pytest.mark.parametrize(
    ("host", "endpoints", "url", "events"),
    [
        ("", TCP, "http://HOST:1", "tcp://HOST:5557"),
        ("", IPC, "http://127.0.0.1:1", "ipc:///run/events"),
        ("gpu1", TCP, "http://gpu1:1", "tcp://gpu1:5557"),
        ("::1", TCP, "http://[::1]:1", "tcp://[::1]:5557"),
    ],
)
def test_the_gateways_entry_can_be_pasted_where_the_host_is_known(
    host: str, endpoints: Endpoints, url: str, events: str
) -> None:
    told = json.loads(launching.entry(Server("http", host, "1", 1), "sglang", endpoints))
    assert told == {"url": url, "engine": "sglang", "events": events, "replay": "ipc:///run/replay"}


def test_the_gateways_entry_counts_ranks() -> None:
    told = json.loads(launching.entry(Server("https", "gpu1", "1", 2), "vllm", TCP, "tcp://*:7000", "k*y"))
    assert (told["url"], told["ranks"]) == ("https://gpu1:1", 2)
    assert (told["agent"], told["agent_key"]) == ("tcp://gpu1:7000", "k*y")
