import json
import os
from pathlib import Path

import pytest

from engine_adapters import launching
from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints


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


def test_the_gateways_entry_names_the_host_where_it_must() -> None:
    told = json.loads(launching.entry("1", "sglang", Endpoints("tcp://*:5557", "ipc:///run/replay")))
    assert told == {
        "url": "http://HOST:1",
        "engine": "sglang",
        "events": "tcp://HOST:5557",
        "replay": "ipc:///run/replay",
    }
