import dataclasses
import json
from pathlib import Path

import pytest

from engine_adapters.settings import Tiers
from engine_adapters.vllm import cpu
from engine_adapters.vllm.cpu import CpuReplica


@pytest.fixture
def spec(tmp_path: Path) -> CpuReplica:
    return CpuReplica(
        "a", str(tmp_path), "smol", 8101, Path("/run/x"), cores=(2, 3), extra=("--dtype=float32",)
    )


def test_command_line(spec: CpuReplica) -> None:
    command = cpu.command(spec, Path("/env/bin/vllm"), {})
    assert command[:3] == ["/env/bin/vllm", "serve", spec.model]
    assert {"--served-model-name=smol", "--port=8101", "--host=127.0.0.1", "--enable-prefix-caching"} <= set(
        command
    )


def test_extra_flags_come_last(spec: CpuReplica) -> None:
    command = cpu.command(spec, Path("vllm"), {})
    assert command[-1] == "--dtype=float32"
    assert command.index("--dtype=bfloat16") < len(command) - 1


def test_events_are_on_endpoints_that_vllm_binds(spec: CpuReplica) -> None:
    flag = next(arg for arg in cpu.command(spec, Path("vllm"), {}) if arg.startswith("--kv-events-config="))
    events = json.loads(flag.partition("=")[2])
    assert events["enable_kv_cache_events"] is True
    assert events["endpoint"] == spec.events == "ipc:///run/x/a.events"
    assert events["replay_endpoint"] == spec.replay == "ipc:///run/x/a.replay"


def test_tiers_are_in_the_engine(spec: CpuReplica) -> None:
    assert not any("--kv-transfer-config" in arg for arg in cpu.command(spec, Path("vllm"), {}))
    tiered = dataclasses.replace(spec, tiers=Tiers.model_validate({"host": "1GiB"}))
    (flag,) = (arg for arg in cpu.command(tiered, Path("vllm"), {}) if "--kv-transfer-config" in arg)
    inside = json.loads(flag.partition("=")[2])["kv_connector_extra_config"]
    assert inside["agent"]["bind"] == tiered.agent == "ipc:///run/x/a.agent"
    assert spec.agent == ""


def test_environment_adds_to_the_given_one(spec: CpuReplica) -> None:
    environment = cpu.environment(spec, {"PATH": "/bin"})
    assert environment["PATH"] == "/bin"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "2,3"
    assert environment["TMPDIR"] == "/run/x"


def test_without_cores_vllm_chooses(spec: CpuReplica) -> None:
    assert "VLLM_CPU_OMP_THREADS_BIND" not in cpu.environment(dataclasses.replace(spec, cores=()), {})


def test_a_hub_model_may_be_fetched_and_a_folder_may_not(spec: CpuReplica) -> None:
    assert cpu.environment(spec, {})["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in cpu.environment(dataclasses.replace(spec, model="owner/name"), {})
