"""compose.yaml and what it mounts, without starting containers."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cache.sizes import parse_size
from engine_adapters.commands import app
from engine_adapters.flags import Endpoints
from engine_adapters.sglang.flags import watched
from gateway.settings import load_settings

ROOT = Path(__file__).parents[2]
VLLM_IMAGE = ROOT / "deploy/vllm.Dockerfile"
GIB = 1 << 30
ENGINES = {"vllm-a": 8000, "vllm-b": 8000}
SGLANG = {"sglang-a": 30000, "sglang-b": 30000}


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
    resolved: dict[str, Any] = yaml.safe_load(docker_compose("config"))
    return resolved


def test_it_is_valid() -> None:
    docker_compose("config", "-q")


def test_services(compose: dict[str, Any]) -> None:
    started = {name for name, service in compose["services"].items() if not service.get("profiles")}
    assert started == {"gateway", "prometheus", *ENGINES}


@pytest.fixture(scope="module")
def mixed() -> dict[str, Any]:
    """The same with its profile for SGLang."""
    resolved: dict[str, Any] = yaml.safe_load(docker_compose("--profile", "sglang", "config"))
    return resolved


def test_sglang_joins_with_its_profile_as_hpkv_launch_would_start_it(mixed: dict[str, Any]) -> None:
    assert mixed["services"].keys() == {"gateway", "prometheus", *ENGINES, *SGLANG}
    for name in SGLANG:
        service = mixed["services"][name]
        flags = dict(flag.partition("=")[::2] for flag in service["command"])
        ours = dict(flag.partition("=")[::2] for flag in watched(Endpoints("tcp://*:5557", "tcp://*:5558")))
        assert json.loads(flags.pop("--kv-events-config")) == json.loads(ours.pop("--kv-events-config"))
        assert ours.items() <= flags.items()
        assert "ports" not in service


def launched(service: dict[str, Any]) -> dict[str, Any]:
    """vLLM's JSON flags, as the image's entrypoint makes them of the service's command."""
    entrypoint = json.loads(VLLM_IMAGE.read_text().rpartition("ENTRYPOINT ")[2])
    assert entrypoint[:2] == ["hpkv", "launch"]
    shown = CliRunner().invoke(app, [*entrypoint[1:], "--env=ENV", "--print", *service["command"]])
    assert shown.exit_code == 0, shown.output
    flags = dict(flag.partition("=")[::2] for flag in shlex.split(shown.stdout))
    return {name: json.loads(value) for name, value in flags.items() if value.startswith("{")}


@pytest.fixture(autouse=True)
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder ENV that looks like vLLM's environment."""
    monkeypatch.chdir(tmp_path)
    executable = tmp_path / "ENV/bin/vllm"
    executable.parent.mkdir(parents=True)
    executable.touch()


def test_engines_bind_their_event_sockets(compose: dict[str, Any]) -> None:
    for name in ENGINES:
        events = launched(compose["services"][name])["--kv-events-config"]
        # Without the `*` an engine connects instead, and a gateway that connects too hears nothing.
        assert events["endpoint"] == "tcp://*:5557"
        assert events["replay_endpoint"] == "tcp://*:5558"


def test_the_tiers_fit_into_what_the_container_has(compose: dict[str, Any]) -> None:
    for name in ENGINES:
        service = compose["services"][name]
        extra = launched(service)["--kv-transfer-config"]["kv_connector_extra_config"]
        gib, unit = service["shm_size"][:-2], service["shm_size"][-2:]
        assert unit == "gb", "Docker's gb are GiB"
        assert parse_size(extra["host"]) + GIB <= int(gib) * GIB
        assert "ipc" not in service, "the host's /dev/shm would take the place of shm_size"
        assert extra["ssd"]["path"] in [mount.split(":")[1] for mount in service["volumes"]]


def test_engines_publish_no_port_and_share_no_gpu(compose: dict[str, Any]) -> None:
    devices = []
    for name in ENGINES:
        service = compose["services"][name]
        assert "ports" not in service
        assert list(service["networks"]) == ["engines"]
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        devices += device["device_ids"]
    assert sorted(devices) == ["0", "1"]


@pytest.mark.parametrize(("settings_file", "engines"), [("hpkv", ENGINES), ("mixed", ENGINES | SGLANG)])
def test_the_gateway_accepts_its_settings(
    compose: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    settings_file: str,
    engines: dict[str, int],
) -> None:
    key_files = {name: tmp_path / name for name in ("api-keys", "admin-keys")}
    for file in key_files.values():
        file.write_text(f"sk-{file.name}\n")
    for name, value in compose["services"]["gateway"]["environment"].items():
        if name.startswith("HPKV_"):
            monkeypatch.setenv(name, str(key_files.get(Path(value).name, value)))
    settings = load_settings(ROOT / f"deploy/compose/{settings_file}.yaml")
    assert [replica.name for replica in settings.replicas] == list(engines)
    assert settings.listen.host == "0.0.0.0"
    for replica in settings.replicas:
        assert replica.url.host == replica.name
        assert replica.url.port == engines[replica.name]
        assert replica.name.startswith(replica.engine)
        assert replica.events == f"tcp://{replica.name}:5557"
        assert replica.replay == f"tcp://{replica.name}:5558"


def test_prometheus_scrapes_every_service(compose: dict[str, Any]) -> None:
    jobs = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in jobs for group in job["static_configs"] for target in group["targets"]}
    assert targets == {"gateway:8000", *(f"{name}:{port}" for name, port in ENGINES.items())}
    assert {target.split(":")[0] for target in targets} <= set(compose["services"])


@pytest.mark.parametrize("name", ["gateway", "vllm"])
def test_images_are_made_from_files_that_exist(name: str) -> None:
    dockerfile = (ROOT / f"deploy/{name}.Dockerfile").read_text()
    copies = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    sources = [source for copy in copies if not copy[0].startswith("--from") for source in copy]
    allowed = (ROOT / f"deploy/{name}.Dockerfile.dockerignore").read_text().splitlines()
    kept = [line[1:] for line in allowed if line.startswith("!")]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(source == name or source.startswith(f"{name}/") for name in kept)


def test_the_gateway_runs_as_nobody_special() -> None:
    assert "USER hpkv" in (ROOT / "deploy/gateway.Dockerfile").read_text()


def test_the_engines_image_has_what_our_code_needs_there() -> None:
    locked = (ROOT / "deploy/requirements/dev.txt").read_text()
    pins = re.findall(r"\S+==\S+", VLLM_IMAGE.read_text())
    assert {pin.partition("==")[0] for pin in pins} == {"xxhash", "obstore"}
    assert all(f"\n{pin} " in locked for pin in pins)
