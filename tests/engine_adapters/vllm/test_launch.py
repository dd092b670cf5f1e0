"""`hpkv launch vllm` with an engine that only tells how it was called."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine_adapters import launching
from engine_adapters.commands import app
from engine_adapters.errors import SettingsError
from engine_adapters.vllm import launch

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
    command = [sys.executable, "-m", "hpkv", "launch", "vllm", "m", f"--env={env}", "--", "--wait"]
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
    shown = hpkv(*arguments, "--print", "--", "--dtype", "float32")
    assert shown.returncode == 0, shown.stderr
    command = shlex.split(shown.stdout)
    assert command[:3] == [str(env / "bin/vllm"), "serve", "a model"]
    assert command[-2:] == ["--dtype", "float32"]
    ran = hpkv(*arguments, "--", "--dtype", "float32")
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tiers=host=8G",), "'8G' is no size"),
        (("--tiers=host=9000TiB",), "--shm-size="),
        (("--", "--kv-transfer-config={}"), "--kv-transfer-config clashes with what hpkv sets: use --tiers"),
        (("--events=tcp://*:5557",), "--events and --replay go together"),
        (("--events=tcp://h:1", "--replay=tcp://h:2"), "an engine can't bind tcp://h:1"),
    ],
)
def test_what_cannot_work_never_starts(env: Path, arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["launch", "vllm", "m", f"--env={env}", *arguments])
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr


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
