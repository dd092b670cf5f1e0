"""`hpkv launch sglang`, and how a CPU replica is started."""

import contextlib
import dataclasses
import json
import os
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine_adapters import launching, memory
from engine_adapters.commands import app
from engine_adapters.errors import SettingsError
from engine_adapters.settings import Tiers
from engine_adapters.sglang import cpu, launch
from engine_adapters.sglang.cpu import CpuReplica
from engine_adapters.sglang.settings import load_settings
from engine_adapters.tiers import parse_tiers

STORED = "--tiers=host=3GB,ssd=/data/kv:4GiB"


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment of this Python, with an SGLang that is one line of metadata and a script."""
    return made(tmp_path / "env", "0.5.23")


def made(folder: Path, version: str) -> Path:
    site = folder / "site/sglang.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    (folder / "bin").mkdir()
    python, sglang = folder / "bin/python", folder / "bin/sglang"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site.parent}:$PYTHONPATH exec {sys.executable} "$@"\n')
    sglang.write_text(f"#!{python}\n")
    python.chmod(0o755)
    sglang.chmod(0o755)
    return folder


def shown(env: Path, *arguments: str) -> list[str]:
    done = CliRunner().invoke(app, ["launch", "sglang", "a model", f"--env={env}", "--print", *arguments])
    assert done.exit_code == 0, done.stderr
    return shlex.split(done.stdout)


def test_events_come_in_the_form_that_tells_prompts_apart(env: Path) -> None:
    command = shown(env, "--events=tcp://*:5557", "--replay=tcp://*:5558")
    assert command[:3] == [str(env / "bin/sglang"), "serve", "--model-path=a model"]
    (events,) = (flag for flag in command if flag.startswith("--kv-events-config="))
    assert json.loads(events.partition("=")[2]) == {
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5558",
        "topic": "kv",
        "format": "dynamo",
    }


def test_pages_have_16_tokens_unless_the_user_says_otherwise(env: Path) -> None:
    command = shown(env, "--", "--page-size", "1")
    assert command.index("--page-size=16") < command.index("--page-size")
    assert command[-2:] == ["--page-size", "1"]


def test_sockets_are_named_by_the_port(env: Path) -> None:
    assert any("sglang-30001.events" in flag for flag in shown(env, "--", "--port=30001"))
    assert any("sglang-30000.events" in flag for flag in shown(env))


@pytest.mark.parametrize("flag", ["--kv-events-config={}", "--disable-radix-cache", "--model-path=x"])
def test_a_flag_that_would_undo_one_of_ours_is_refused(env: Path, flag: str) -> None:
    done = CliRunner().invoke(app, ["launch", "sglang", "m", f"--env={env}", "--print", "--", flag])
    assert done.exit_code == 1
    assert "clashes with what hpkv sets" in done.stderr


def test_an_old_sglang_is_refused(env: Path, tmp_path: Path) -> None:
    one = launch.Launch("m", Tiers(), launching.Endpoints("ipc:///e", "ipc:///r"), ("--port=0",))
    launch.check(one, env / "bin/sglang", os.environ)
    old = made(tmp_path / "old", "0.5.9")
    with pytest.raises(SettingsError, match=r"is SGLang 0\.5\.9; 0\.5\.23 or later is needed"):
        launch.check(one, old / "bin/sglang", os.environ)


def test_the_announcement_is_what_the_gateway_needs() -> None:
    endpoints = launching.Endpoints("tcp://*:5557", "tcp://*:5558")
    said = launch.Launch("m", Tiers(), endpoints, ("--host=0.0.0.0", "--port=30001")).announcement({})
    assert json.loads(said[said.index("{") :]) == {
        "url": "http://HOST:30001",
        "engine": "sglang",
        "events": "tcp://HOST:5557",
        "replay": "tcp://HOST:5558",
    }


def test_another_engines_threshold_is_told_to_be_unread() -> None:
    one = launch.Launch("m", Tiers(), launching.Endpoints("ipc:///e", "ipc:///r"))
    assert "VLLM_HPKV_TOKEN_THRESHOLD isn't read" in one.announcement({"VLLM_HPKV_TOKEN_THRESHOLD": "64"})


def value(command: list[str], flag: str) -> str:
    (found,) = (part.partition("=")[2] for part in command if part.startswith(f"{flag}="))
    return found


def test_tiers_become_sglangs_host_tier_and_our_backend_below_it(env: Path) -> None:
    line = "host=8GiB,ssd=/data/kv:200GiB,shared=/mnt/kv"
    command = shown(env, f"--tiers={line}", "--", "--tp=2")
    assert "--enable-hierarchical-cache" in command
    assert value(command, "--hicache-size") == "4"  # GB of each of two ranks
    assert value(command, "--hicache-write-policy") == "write_through"
    assert value(command, "--hicache-storage-backend") == "dynamic"
    extra = json.loads(value(command, "--hicache-storage-backend-extra-config"))
    assert extra["class_name"] == "HpkvStorage"
    assert extra["prefetch_threshold"] == 1024
    assert extra["ssd"] == {"path": "/data/kv", "cap": "200GiB"}
    assert load_settings(extra, {}).mode == "gpu+host+ssd+shared"


def test_host_alone_is_sglangs_own_affair(env: Path) -> None:
    command = shown(env, "--tiers=host=2GB", "--", "--hicache-mem-layout=layer_first")
    assert "--enable-hierarchical-cache" in command
    assert not any("storage-backend" in part for part in command)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tiers=host=3GB", "--", "--tp", "2"], "so 2 ranks take 1 GB each, in all 2 of 3 GB"),
        (["--tiers=host=64GiB"], "host=64GiB: SGLang counts each rank's memory in whole GB"),
        (["--tiers=host=64GiB"], "so it takes 68 GB, in all 68 of 68.72 GB"),
    ],
)
def test_what_is_left_out_of_host_is_told_once(env: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["launch", "sglang", "m", f"--env={env}", "--print", *arguments])
    assert done.exit_code == 0, done.output
    assert (done.stderr.count("whole GB"), said in done.stderr) == (1, True)
    assert "whole GB" not in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--tiers=host=4GB", "--", "--tp=2"]])
def test_nothing_is_told_of_what_fits(env: Path, arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["launch", "sglang", "m", f"--env={env}", "--print", *arguments])
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_host_tier_that_memory_cant_hold_is_refused_first(env: Path) -> None:
    arguments = [f"--env={env}", "--tiers=host=1000000GB"]
    done = CliRunner().invoke(app, ["launch", "sglang", "owner/name", *arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "a host tier of 1PB doesn't fit into memory" in done.stderr


def test_each_node_has_its_share_of_host(env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda *_: 10 * 10**9)
    for nodes, fits in (("1", False), ("2", True)):
        flags = ("--port=0", "--nnodes", nodes)
        one = launch.Launch("m", parse_tiers("host=16GB"), launching.Endpoints("ipc:///e", "ipc:///r"), flags)
        with contextlib.nullcontext() if fits else pytest.raises(SettingsError, match="doesn't fit"):
            launch.check(one, env / "bin/sglang", os.environ)


@pytest.mark.parametrize(
    ("line", "loads"), [("gpu", False), ("host=2GB", False), ("host=2GB,ssd=/data/kv:4GiB", True)]
)
def test_the_threshold_is_told_where_something_is_loaded_by_it(line: str, loads: bool) -> None:
    one = launch.Launch("m", parse_tiers(line), launching.Endpoints("ipc:///e", "ipc:///r"))
    assert ("loads of 1024 tokens and more" in one.announcement({})) is loads


def test_the_environments_threshold_is_sglangs(env: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HPKV_TOKEN_THRESHOLD", "300")
    command = shown(env, "--tiers=host=2GB,ssd=/data/kv:4GiB")
    extra = json.loads(value(command, "--hicache-storage-backend-extra-config"))
    assert extra["prefetch_threshold"] == 300
    assert command[0] == "SGLANG_HPKV_TOKEN_THRESHOLD=300"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tiers=host=512MiB"], "host: SGLang counts each rank's host memory in whole GB"),
        (["--tiers=host=3GB", "--", "--tp-size=4"], "less than 4 GB"),
        (["--tiers=host=3GB", "--", "--tp-size=x"], "no number of ranks"),
        (["--tiers=host=3GB", "--", "--hicache-size=4"], "clashes"),
        (["--tiers=host=3GB", "--", "--enable-lmcache"], "clashes"),
        (["--tiers=ssd=/data/kv:4GiB"], "set host too"),
        (["--tiers=host=3GB", "--agent=tcp://127.0.0.1:5600"], "--agent is for tiers below SGLang's own"),
        ([STORED, "--", "--hicache-mem-layout", "layer_first"], "use page_first, or page_first_direct"),
        ([STORED, "--", "--hicache-mem-layout=page_head"], "--hicache-mem-layout=page_head scatters"),
        ([STORED, "--", "--decode-context-parallel-size=2"], "context parallelism"),
        ([STORED, "--", "--attn-cp-size", "2"], "context parallelism"),
    ],
)
def test_tiers_that_cant_be_are_refused(env: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["launch", "sglang", "m", f"--env={env}", "--print", *arguments])
    assert done.exit_code == 1
    assert said in done.stderr


@pytest.fixture
def replica(tmp_path: Path) -> CpuReplica:
    return CpuReplica(
        "c", str(tmp_path), "smol", 8101, Path("/run/x"), cores=(2, 3), extra=("--dtype=float32",)
    )


def test_a_cpu_replicas_command_ends_with_the_users_flags(replica: CpuReplica) -> None:
    command = cpu.command(replica, Path("/env/bin/sglang"), {})
    assert {"--device=cpu", "--port=8101", "--served-model-name=smol", "--tool-call-parser=hermes"} <= set(
        command
    )
    assert command[-1] == "--dtype=float32"
    assert any("ipc:///run/x/c.events" in flag for flag in command)


def test_a_cpu_replicas_environment(replica: CpuReplica) -> None:
    environment = cpu.environment(replica, {"PATH": "/bin"})
    assert environment["PATH"] == "/bin"
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["HF_HUB_OFFLINE"] == "1"
    hub = dataclasses.replace(replica, model="owner/name", cores=())
    assert not {"OMP_NUM_THREADS", "HF_HUB_OFFLINE"} & cpu.environment(hub, {}).keys()
