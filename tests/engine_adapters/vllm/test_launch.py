import dataclasses
import json
from pathlib import Path

import pytest

from engine_adapters.vllm import launch
from engine_adapters.vllm.launch import Launch


@pytest.fixture
def spec(tmp_path: Path) -> Launch:
    return Launch("a", str(tmp_path), "smol", 8101, Path("/run/x"), cores=(2, 3), extra=("--dtype=float32",))


def test_command_line(spec: Launch) -> None:
    command = launch.command(spec, Path("/env/bin/vllm"))
    assert command[:3] == ["/env/bin/vllm", "serve", spec.model]
    assert {"--served-model-name=smol", "--port=8101", "--host=127.0.0.1", "--enable-prefix-caching"} <= set(
        command
    )


def test_extra_flags_come_last(spec: Launch) -> None:
    command = launch.command(spec, Path("vllm"))
    assert command[-1] == "--dtype=float32"
    assert command.index("--dtype=bfloat16") < len(command) - 1


def test_events_are_on_endpoints_that_vllm_binds(spec: Launch) -> None:
    flag = next(arg for arg in launch.command(spec, Path("vllm")) if arg.startswith("--kv-events-config="))
    events = json.loads(flag.partition("=")[2])
    assert events["enable_kv_cache_events"] is True
    assert events["endpoint"] == spec.events == "ipc:///run/x/a.events"
    assert events["replay_endpoint"] == spec.replay == "ipc:///run/x/a.replay"


def test_environment_adds_to_the_given_one(spec: Launch) -> None:
    environment = launch.environment(spec, {"PATH": "/bin"})
    assert environment["PATH"] == "/bin"
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "2,3"
    assert environment["VLLM_RPC_BASE_PATH"] == "/run/x"


def test_without_cores_vllm_chooses(spec: Launch) -> None:
    assert "VLLM_CPU_OMP_THREADS_BIND" not in launch.environment(dataclasses.replace(spec, cores=()), {})


def test_a_hub_model_may_be_fetched_and_a_folder_may_not(spec: Launch) -> None:
    assert launch.environment(spec, {})["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in launch.environment(dataclasses.replace(spec, model="owner/name"), {})
