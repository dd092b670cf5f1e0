"""compose.yaml and what it mounts, without starting containers."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import load_settings

ROOT = Path(__file__).parents[2]
ENGINES = {"vllm-a": 8000, "vllm-b": 8000, "sglang-a": 30000, "sglang-b": 30000}


def docker_compose(*arguments: str) -> str:
    if shutil.which("docker-compose") is None:
        pytest.fail("docker-compose is missing: apt-get install docker-compose (`make test` does, as root)")
    command = ["docker-compose", "--file", "compose.yaml", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The whole file as docker-compose understands it."""
    resolved: dict[str, Any] = yaml.safe_load(docker_compose("--profile", "sglang", "config"))
    return resolved


def test_it_is_valid() -> None:
    docker_compose("config", "-q")


def test_services_and_profiles(compose: dict[str, Any]) -> None:
    of = {name: service.get("profiles") for name, service in compose["services"].items()}
    assert {name for name, profiles in of.items() if profiles is None} == {
        "gateway",
        "vllm-a",
        "vllm-b",
        "prometheus",
    }
    assert of["sglang-a"] == of["sglang-b"] == ["sglang"]


def test_engines_bind_their_event_sockets(compose: dict[str, Any]) -> None:
    for name in ENGINES:
        flag = next(arg for arg in compose["services"][name]["command"] if "--kv-events-config=" in arg)
        events = json.loads(flag.partition("=")[2])
        # Without the `*` an engine connects instead, and a gateway that connects too hears nothing.
        assert events["endpoint"] == "tcp://*:5557"
        assert events["replay_endpoint"] == "tcp://*:5558"


def test_engines_publish_no_port_and_share_no_gpu(compose: dict[str, Any]) -> None:
    devices = []
    for name in ENGINES:
        service = compose["services"][name]
        assert "ports" not in service
        assert list(service["networks"]) == ["engines"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        devices += device["device_ids"]
    assert sorted(devices) == ["0", "1", "2", "3"]


def test_the_gateway_accepts_its_settings(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key_files = {name: tmp_path / name for name in ("api-keys", "admin-keys")}
    for file in key_files.values():
        file.write_text(f"sk-{file.name}\n")
    for name, value in compose["services"]["gateway"]["environment"].items():
        if name.startswith("HPKV_"):
            monkeypatch.setenv(name, str(key_files.get(Path(value).name, value)))
    settings = load_settings(ROOT / "deploy/compose/hpkv.yaml")
    assert settings.listen.host == "0.0.0.0"
    for replica in settings.replicas:
        assert replica.url.host == replica.name
        assert replica.url.port == ENGINES[replica.name]
        assert replica.events == f"tcp://{replica.name}:5557"
        assert replica.replay == f"tcp://{replica.name}:5558"


def test_prometheus_scrapes_every_service(compose: dict[str, Any]) -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for group in job["static_configs"] for target in group["targets"]}
    assert targets == {"gateway:8000", *(f"{name}:{port}" for name, port in ENGINES.items())}
    assert {target.split(":")[0] for target in targets} <= set(compose["services"])


def test_the_gateways_image_is_made_from_files_that_exist() -> None:
    dockerfile = (ROOT / "deploy/gateway.Dockerfile").read_text()
    copies = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    sources = [source for copy in copies if not copy[0].startswith("--from") for source in copy]
    allowed = (ROOT / "deploy/gateway.Dockerfile.dockerignore").read_text().splitlines()
    kept = [line[1:] for line in allowed if line.startswith("!")]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(source == name or source.startswith(f"{name}/") for name in kept)
    assert "USER hpkv" in dockerfile
