import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine_adapters.commands import app, default_home
from engine_adapters.sglang import cpu
from engine_adapters.tiers import format_tiers
from engine_adapters.up import fleet
from engine_adapters.up.options import Options


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Options]:
    """The options with which fleets would have been started."""
    seen: list[Options] = []
    monkeypatch.setattr(fleet, "up", lambda options, progress: seen.append(options))
    monkeypatch.setenv("HPKV_HOME", str(tmp_path))
    return seen


def test_tiers_are_on_by_default(asked: list[Options], tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["up"]).exit_code == 0
    assert asked[0].tiers.mode == "gpu+host+ssd"
    assert format_tiers(asked[0].tiers) == f"host=512MiB,ssd={tmp_path}/kv:4GiB"


def test_tiers_can_be_others_or_off(asked: list[Options]) -> None:
    runner = CliRunner(env={"HPKV_UP_TIERS": "gpu"})
    assert runner.invoke(app, ["up"]).exit_code == 0
    assert runner.invoke(app, ["up", "--tiers=host=1GiB"]).exit_code == 0
    assert [options.tiers.mode for options in asked] == ["gpu", "gpu+host"]


@pytest.mark.parametrize("engine", ["sglang", "mixed"])
def test_sglang_has_the_least_that_it_can(asked: list[Options], tmp_path: Path, engine: str) -> None:
    done = CliRunner().invoke(app, ["up", f"--engine={engine}"])
    assert done.exit_code == 0, done.output
    assert asked[0].tiers.host == 10**9
    assert asked[0].tiers.ssd is not None
    assert asked[0].tiers.ssd.path == tmp_path / "kv"
    replica = cpu.CpuReplica("c", "model", "model", 8102, Path("/sockets"), tiers=asked[0].tiers)
    assert replica.agent.endswith("/c.agent")
    assert "--hicache-size=1" in cpu.command(replica, Path("sglang"), {})


def test_tiers_that_cannot_be_stop_it(asked: list[Options]) -> None:
    done = CliRunner().invoke(app, ["up", "--tiers=host=8G"])
    assert (done.exit_code, asked) == (1, [])
    assert done.stderr.startswith("hpkv up: tiers: host: '8G' is no size")


def test_flags_for_engines_that_no_shell_could_read(asked: list[Options]) -> None:
    done = CliRunner().invoke(app, ["up", "--engine-args=--x 'y"])
    assert (done.exit_code, asked) == (1, [])
    assert done.stderr == "hpkv up: --engine-args (ENGINE_ARGS=): No closing quotation in --x 'y\n"


def test_a_command_finds_what_was_made_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = tmp_path / "envs/gateway"
    environment.mkdir(parents=True)
    monkeypatch.delenv("HPKV_HOME", raising=False)
    monkeypatch.setattr(sys, "prefix", str(environment))
    assert default_home() == Path.home() / ".cache/hpkv", "an environment of someone else's"
    (environment / ".made").touch()
    assert default_home() == tmp_path
    monkeypatch.setenv("HPKV_HOME", "/elsewhere")
    assert default_home() == Path("/elsewhere")
