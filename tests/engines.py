"""Real engines for tests: two vLLM replicas on CPU, shared by a whole run, whole again after each test."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from engine_adapters.up import fleet, http, machine, options, processes, small_model, state
from engine_adapters.up.crew import Crew
from engine_adapters.up.progress import Progress
from engine_adapters.up.state import Folder
from engine_adapters.vllm import cpu

HOME = Path(os.environ.get("HPKV_HOME") or Path(__file__).parent.parent / ".hpkv").absolute()
"""As in the Makefile: where `make test` has made the environment and the model."""

MODEL = small_model.NAME
READY_TIMEOUT = 300.0
TEST_TIMEOUT = 600
"""Seconds of one test on engines: the first to ask for them waits for their start, too."""


class Replica:
    """One real vLLM server of SmolLM2, on a port and event endpoints that it keeps over restarts."""

    def __init__(self, spec: cpu.CpuReplica, executable: Path, crew: Crew) -> None:
        self.name = spec.name
        self.url = spec.url
        self.events = spec.events
        self.replay = spec.replay
        self._spec = spec
        self._executable = executable
        self._crew = crew
        self.start()

    def start(self) -> None:
        """Start it (again); returns at once."""
        # /reset_prefix_cache, and responses that are kept
        ours = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}
        base = {**os.environ, **ours}
        command = cpu.command(self._spec, self._executable, base)
        self._child = self._crew.start(self.name, command, cpu.environment(self._spec, base))

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Block until it answers its health check."""
        deadline = time.monotonic() + timeout
        while not http.answers(f"{self.url}/health"):
            assert self._child.running, f"replica {self.name} ended while starting:\n{self.log_end()}"
            assert time.monotonic() < deadline, f"replica {self.name} is not ready:\n{self.log_end()}"
            time.sleep(0.2)

    def kill(self) -> None:
        """End all of its processes without warning; returns when they are gone."""
        processes.end([self._child.record], grace=0)
        self._child.process.wait()

    def stop(self) -> None:
        """Freeze all of its processes (SIGSTOP); its connections stay open."""
        self._child.signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Let frozen processes go on."""
        self._child.signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it runs, start it on the same port, and wait until it is ready."""
        self.kill()
        self.start()
        self.wait_ready()

    def heal(self) -> None:
        """Undo what a test has done to its processes."""
        self.cont()
        if not self._child.running:
            self.start()
        self.wait_ready()

    def log_end(self, lines: int = 40) -> str:
        """Return the last lines of its log."""
        return self._child.log_end(lines)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def small_model_folder() -> Path:
    """SmolLM2-135M-Instruct as a folder, made if missing, as is vLLM's environment."""
    fleet.prepare(options.Options(HOME, HOME / "up"), Progress(Console()))
    return HOME / "models" / MODEL


@pytest.fixture(scope="session")
def replicas(small_model_folder: Path) -> Iterator[tuple[Replica, ...]]:
    """Two replicas, `a` and `b`, ready. What a test kills or freezes is whole again for the next one."""
    each = fleet.ENGINE_MEMORY + machine.GIB + options.SMALL_MODEL_BYTES
    machine.require_memory(2, each, machine.available_memory())
    executable = fleet.prepare(options.Options(HOME, HOME / "up"), Progress(Console())).script("vllm")
    root = HOME / "test-engines"
    _end_those_of_killed_runs(root)
    folder = Folder(root / str(os.getpid()))
    folder.path.mkdir(parents=True)
    crew = Crew(folder, "")
    try:
        shares = machine.core_shares(os.sched_getaffinity(0), 2)
        specs = [_spec(small_model_folder, crew.sockets, *share) for share in zip("ab", shares, strict=True)]
        both = tuple(Replica(spec, executable, crew) for spec in specs)
        for replica in both:
            replica.wait_ready()
        yield both
    finally:
        crew.end()
        shutil.rmtree(folder.path)


def _end_those_of_killed_runs(root: Path) -> None:
    for path in root.glob("*"):
        if not any(processes.is_alive(one.supervisor) for one in Folder(path).recorded()):
            state.down(Folder(path))
            shutil.rmtree(path)


def _spec(model: Path, sockets: Path, name: str, cores: tuple[int, ...]) -> cpu.CpuReplica:
    return cpu.CpuReplica(
        name=name,
        model=str(model),
        served_name=MODEL,
        port=free_port(),
        sockets=sockets,
        cores=cores,
    )


@pytest.fixture(autouse=True)
def _whole_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "replicas" in request.fixturenames:
        for replica in request.getfixturevalue("replicas"):
            replica.heal()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT))
