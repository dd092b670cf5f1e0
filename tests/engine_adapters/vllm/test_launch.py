"""`hpkv launch vllm` with an engine that only tells how it was called."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine_adapters import launching
from engine_adapters.agent import keys
from engine_adapters.commands import app
from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints
from engine_adapters.settings import Tiers
from engine_adapters.vllm import launch
from tests.ports import free_port

ENGINE = """\
#!{python}
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(json.dumps([os.getpid(), sys.argv[1:]]), flush=True)
if "--wait" in sys.argv:
    time.sleep(600)
"""


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment of this Python, with a vLLM that is one line of metadata and a script."""
    folder = tmp_path / "env"
    return made(folder, "0.32.0")


def made(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    site = folder / "site"
    (site / "vllm.dist-info").mkdir(parents=True)
    (site / "vllm.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    python = folder / "bin/python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site}:$PYTHONPATH exec {sys.executable} "$@"\n')
    vllm = folder / "bin/vllm"
    vllm.write_text(ENGINE.format(python=sys.executable).replace(sys.executable, str(python), 1))
    python.chmod(0o755)
    vllm.chmod(0o755)
    return folder


def hpkv(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hpkv", "launch", "vllm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_becomes_the_engine_and_signals_reach_it(env: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hpkv",
        "launch",
        "vllm",
        "m",
        f"--env={env}",
        "--",
        "--port=0",
        "--wait",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        pid, arguments = json.loads(process.stdout.readline())
        assert pid == process.pid
        assert arguments[:2] == ["serve", "m"]
        assert arguments[-1] == "--wait"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 7


def test_printed_is_what_would_run_and_nothing_runs(env: Path, tmp_path: Path) -> None:
    tiers = f"host=64MiB,ssd={tmp_path}/k v:1GiB"
    events = ("--events=tcp://*:5557", "--replay=tcp://*:5558")
    arguments = ("a model", f"--env={env}", f"--tiers={tiers}", *events)
    shown = hpkv(*arguments, "--print", "--", "--port=0", "--dtype", "float32")
    assert shown.returncode == 0, shown.stderr
    command = shlex.split(shown.stdout)
    assert command[:3] == [str(env / "bin/vllm"), "serve", "a model"]
    assert command[-2:] == ["--dtype", "float32"]
    ran = hpkv(*arguments, "--", "--port=0", "--dtype", "float32")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)[1] == command[1:]
    assert "tiers gpu+host+ssd" in ran.stderr
    assert '"events": "tcp://HOST:5557"' in ran.stderr


def test_pages_may_be_larger_than_blocks(env: Path) -> None:
    command = ["launch", "vllm", "m", f"--env={env}", "--tiers=host=64MiB", "--print"]
    assert "block_size" not in CliRunner().invoke(app, command).stdout
    assert '"block_size": 256' in CliRunner().invoke(app, [*command, "--page-tokens=256"]).stdout


def test_the_environment_alone_can_turn_tiers_on(env: Path) -> None:
    command = ["launch", "vllm", "m", f"--env={env}", "--print"]
    assert "--kv-transfer-config" not in CliRunner().invoke(app, command).stdout
    tiered = CliRunner(env={"HPKV_CACHE__HOST": "64MiB"}).invoke(app, command)
    assert "--kv-transfer-config" in tiered.stdout


def test_what_the_environment_sets_is_printed_too(env: Path) -> None:
    variables = {
        "HPKV_CACHE__SSD__PATH": "/a b",
        "HPKV_CACHE__SSD__CAP": "",
        "VLLM_HPKV_TOKEN_THRESHOLD": "7",
    }
    command = ["launch", "vllm", "m", f"--env={env}", "--tiers=host=64MiB,ssd=/c:1GiB", "--print"]
    shown = shlex.split(CliRunner(env=variables).invoke(app, command).stdout)
    assert sorted(shown[:2]) == ["HPKV_CACHE__SSD__PATH=/a b", "VLLM_HPKV_TOKEN_THRESHOLD=7"]
    assert shown[2] == str(env / "bin/vllm")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_flag_before_the_dashes_is_told_where_it_goes(engine: str) -> None:
    done = CliRunner().invoke(app, ["launch", engine, "m", "--port=8001"])
    assert done.exit_code == 2
    assert "go behind `--`" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tiers=host=8G",), "'8G' is no size"),
        (("--tiers=host=9000TiB",), "--shm-size="),
        (("--tiers=host=1MiB,ssd=/proc/kv:1GiB",), "ssd: /proc/kv can't be used"),
        (("--tiers=host=1MiB", "--page-tokens=48", "--", "--block-size=32"), "of 32 tokens here"),
        (("--page-tokens=64",), "--page-tokens is for tiers, and none is on"),
        (("--", "--kv-transfer-config={}"), "--kv-transfer-config clashes with what hpkv sets: use --tiers"),
        (
            ("--tiers=host=1MiB,ssd=/tmp:1GiB", "--", '--weight-transfer-config={"backend": "nccl"}'),
            "--weight-transfer-config clashes with what hpkv sets: pages on ssd or shared would outlive",
        ),
        (("--tiers=host=1MiB", "--agent=tcp://*:7000"), "agent: bind tcp://*:7000 is reachable from other"),
        (("--tiers=host=1MiB", "--agent=tcp://h"), "agent.bind: "),
        (("--tiers=host=1MiB", "--agent=tcp://127.0.0.1:65534"), "up to 65535"),
        (("--agent=ipc:///a",), "--agent is for tiers, and none is on"),
        (("--gateway=http://127.0.0.1:1",), "--gateway is for tiers, and none is on"),
        (("--tiers=host=1MiB", "--gateway=gateway:8000"), "gateway.url: write http://HOST:PORT"),
        (("--tiers=host=1MiB", "--gateway=http://no such host"), "it can't be found from here"),
        (("--gateway-key-file=/key",), "--gateway-key-file is for --gateway"),
        (("--events=tcp://*:5557",), "--events and --replay go together"),
        (("--events=tcp://h:1", "--replay=tcp://h:2"), "an engine can't bind tcp://h:1"),
    ],
)
def test_what_cannot_work_never_starts(env: Path, arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["launch", "vllm", "m", f"--env={env}", *arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr


def test_weights_may_be_replaced_over_host_alone(env: Path) -> None:
    flag = '--weight-transfer-config={"backend": "nccl"}'
    done = hpkv("m", f"--env={env}", "--tiers=host=1MiB", "--", flag)
    assert done.returncode == 0
    assert flag in json.loads(done.stdout)[1]


def test_an_old_vllm_is_refused(tmp_path: Path) -> None:
    env = made(tmp_path / "old", "0.31.4")
    with pytest.raises(SettingsError, match=r"is vLLM 0\.31\.4; 0\.32 or later is needed"):
        launching.check_environment(env / "bin/vllm", launch.NEEDS, os.environ)


def test_an_environment_with_another_cache_is_refused(env: Path) -> None:
    (env / "site/cache.py").write_text("")
    with pytest.raises(SettingsError, match=r"can't import us and vLLM .*'cache' is not a package"):
        launching.check_environment(env / "bin/vllm", launch.NEEDS, os.environ)


def test_a_store_whose_library_is_missing_is_refused(env: Path) -> None:
    (env / "site/obstore.py").write_text("raise ModuleNotFoundError('no obstore')")
    arguments = ["launch", "vllm", "m", f"--env={env}"]
    done = CliRunner().invoke(app, [*arguments, "--tiers=host=1MiB,shared=s3://bucket/kv"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no obstore" in done.stderr


def test_where_vllm_is_found(env: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(env / "bin"))
    assert launching.find_executable("vllm", None, None) == env / "bin/vllm"
    assert launching.find_executable("vllm", None, tmp_path / "home") == env / "bin/vllm"
    ours = made(tmp_path / "home/envs/vllm", "0.32.0") / "bin/vllm"
    assert launching.find_executable("vllm", None, tmp_path / "home") == ours
    assert launching.find_executable("vllm", env, tmp_path / "home") == env / "bin/vllm"
    with pytest.raises(SettingsError, match="there is no bin/vllm"):
        launching.find_executable("vllm", tmp_path, None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingsError, match="no vllm on PATH"):
        launching.find_executable("vllm", None, None)
    assert launching.find_executable("vllm", None, None, to_run=False) == Path("vllm")
    assert launching.find_executable("vllm", Path("/no"), None, to_run=False) == Path("/no/bin/vllm")


def configuration(env: Path, *arguments: str, **environ: str) -> dict[str, Any]:
    """What the engine's inside would be told."""
    command = ["launch", "vllm", "m", f"--env={env}", "--print", *arguments]
    shown = CliRunner(env=environ).invoke(app, command)
    assert shown.exit_code == 0, shown.output
    (transfer,) = (part for part in shlex.split(shown.stdout) if part.startswith("--kv-transfer-config="))
    told: dict[str, Any] = json.loads(transfer.partition("=")[2])["kv_connector_extra_config"]
    return told


def test_an_agent_comes_with_tiers(env: Path, tmp_path: Path) -> None:
    tiers, folder = "--tiers=host=64MiB", tmp_path / f"hpkv-{os.getuid()}"
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    told = configuration(env, tiers, "--", "--port=8101", **runtime)
    assert told["agent"] == {"bind": f"ipc://{folder}/vllm-8101.agent"}
    assert configuration(env, tiers, "--agent=ipc:///run/a", **runtime)["agent"] == {"bind": "ipc:///run/a"}
    assert "agent" not in configuration(env, tiers, "--agent=none", **runtime)


def test_where_the_gateway_finds_the_agent(env: Path) -> None:
    ran = hpkv("m", f"--env={env}", "--tiers=host=64MiB", "--agent=tcp://127.0.0.1:7003", "--", "--port=0")
    assert '"agent": "tcp://127.0.0.1:7003"' in ran.stderr
    ran = hpkv("m", f"--env={env}", "--", "--port=0")
    assert '"events"' in ran.stderr
    assert '"agent"' not in ran.stderr


def test_an_agent_behind_keys_tells_the_public_one(env: Path, tmp_path: Path) -> None:
    public = keys.make(tmp_path / "keys").decode()
    environ = {
        "HPKV_CACHE__AGENT__KEY_FILE": str(tmp_path / "keys/secret.key"),
        "HPKV_CACHE__AGENT__CLIENTS_FILE": str(tmp_path / "keys/public.key"),
        "HPKV_CACHE__HOST": "1MiB",
        "HPKV_CACHE__AGENT__BIND": "tcp://*:7006",
    }
    one = launch.Launch("m", Tiers(), Endpoints("ipc:///e", "ipc:///r"))
    entry = json.loads(one.announcement(environ).partition("replicas: ")[2])
    assert (entry["agent"], entry["agent_key"]) == ("tcp://HOST:7006", public)


def test_an_address_that_is_taken_is_refused(env: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [f"--env={env}", "--tiers=host=1MiB", f"--agent=tcp://127.0.0.1:{port - 1}"]
        done = CliRunner().invoke(app, ["launch", "vllm", "m", *arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    theirs = rf"next two: tcp://127\.0\.0\.1:({port}|{port - 1}) can't be had \(Address already in use\)"
    assert re.search(theirs, done.stderr), "the port before it may be somebody's, too"


@pytest.mark.parametrize("ranks", ["0", "two"])
def test_no_number_of_ranks_is_refused(env: Path, ranks: str) -> None:
    done = CliRunner().invoke(
        app, ["launch", "vllm", "m", f"--env={env}", "--", f"--data-parallel-size={ranks}"]
    )
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"--data-parallel-size {ranks}: write how many" in done.stderr


def at_port(env: Path, flag: str, port: int) -> Result:
    """A launch that has this port for one of its addresses; the others need none."""
    where = {"--events": "ipc:///e", "--replay": "ipc:///r", flag: f"tcp://*:{port}"}
    arguments = [f"--env={env}", *(f"{name}={where[name]}" for name in ("--events", "--replay"))]
    own = f"--port={port if flag == '--port' else 0}"
    return CliRunner().invoke(app, ["launch", "vllm", "m", *arguments, "--", own])


@pytest.mark.parametrize("flag", ["--events", "--replay", "--port"])
def test_a_port_that_cannot_be_is_refused(env: Path, flag: str) -> None:
    done = at_port(env, flag, 65536)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{flag}: tcp://*:65536 has no port that there is" in done.stderr


@pytest.mark.parametrize("flag", ["--events", "--replay", "--port"])
def test_a_port_that_is_taken_is_refused(env: Path, flag: str) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = at_port(env, flag, port)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{flag}: tcp://*:{port} can't be had (Address already in use)" in done.stderr


def test_each_rank_has_ports_of_its_own(env: Path) -> None:
    def launched(*arguments: str) -> str:
        command = ["launch", "vllm", "m", f"--env={env}", "--print", *arguments, "--", "-dp", "2"]
        return CliRunner().invoke(app, command).stderr

    assert "2 data-parallel ranks publish at 2 ports in a row" in launched()
    assert "so far apart" in launched("--events=tcp://*:5557", "--replay=tcp://*:5558")
    assert launched("--events=tcp://*:5557", "--replay=tcp://*:5657") == ""


def test_a_folder_that_is_not_there_is_no_model(env: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["launch", "vllm", f"{tmp_path}/model", f"--env={env}"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"{tmp_path}/model: no such folder" in done.stderr


def test_the_engine_is_told_where_to_register(env: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("an admin key")
    arguments = ("--tiers=host=1MiB", "--gateway=http://127.0.0.1:8000", f"--gateway-key-file={key}")
    ports = ("--events=tcp://*:5557", "--replay=tcp://*:5657")
    told = configuration(env, *arguments, *ports, "--", "--port", "8101", "-dp", "2")["gateway"]
    assert told == {
        "url": "http://127.0.0.1:8000",
        "replica_url": "http://127.0.0.1:8101",
        "admin_key_file": str(key),
        "ranks": 2,
    }
    told = configuration(env, *arguments, "--", "--host=gpu1", "--ssl-certfile=c")["gateway"]
    assert told["replica_url"] == "https://gpu1:8000"
    override = {"HPKV_CACHE__GATEWAY__REPLICA_URL": "http://nat:1"}
    assert "replica_url" not in configuration(env, *arguments, **override)["gateway"]
    port = free_port()
    ran = hpkv("m", f"--env={env}", *arguments, "--", f"--port={port}")
    assert ran.returncode == 0, ran.stderr
    assert f"registers at http://127.0.0.1:8000 as http://127.0.0.1:{port}, its agent at ipc://" in ran.stderr
    assert "another machine" not in ran.stderr
    assert "an admin key" not in ran.stderr + ran.stdout


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"SGLANG_HPKV_TOKEN_THRESHOLD": "64"}, True),
        ({"SGLANG_HPKV_TOKEN_THRESHOLD": ""}, False),
        ({"SGLANG_HPKV_TOKEN_THRESHOLD": "64", "VLLM_HPKV_TOKEN_THRESHOLD": "32"}, False),
        ({"VLLM_HPKV_TOKEN_THRESHOLD": "32"}, False),
    ],
)
def test_another_engines_threshold_alone_is_told_to_be_unread(variables: dict[str, str], told: bool) -> None:
    said = launch.Launch("m", Tiers(), Endpoints("ipc:///e", "ipc:///r")).announcement(variables)
    text = "SGLANG_HPKV_TOKEN_THRESHOLD isn't read by this engine, but VLLM_HPKV_TOKEN_THRESHOLD"
    assert (text in said) is told


def test_a_gateway_elsewhere_cannot_open_socket_files(env: Path) -> None:
    environ = {"HPKV_CACHE__HOST": "1MiB"}
    section = {"url": "http://gateway:8000", "replica_url": "http://gpu1:8000"}
    for events, hinted in (("ipc:///e", True), ("tcp://*:5557", False)):
        one = launch.Launch("m", Tiers(), Endpoints(events, "ipc:///r"), gateway=section)
        assert ("give --events, --replay and --agent ports" in one.announcement(environ)) is hinted
