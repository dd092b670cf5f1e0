"""Real engines for tests: two at a time on CPU, shared by a whole run, whole again after each test."""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from engine_adapters import memory
from engine_adapters.replica import LocalReplica
from engine_adapters.sglang import cpu as sglang_cpu
from engine_adapters.up import fleet, http, machine, options, processes, small_model, state
from engine_adapters.up.crew import Crew
from engine_adapters.up.kinds import KINDS
from engine_adapters.up.progress import Progress
from engine_adapters.up.state import Folder
from tests.lora import make_adapter
from tests.ports import free_port

HOME = Path(os.environ.get("HPKV_HOME") or Path(__file__).parent.parent / ".hpkv").absolute()
"""As in the Makefile: where `make test` has made the environment and the model."""

MODEL = small_model.NAME
LORA, OTHER_LORA = LORAS = ("tenant-a", "tenant-b")
"""What engines call their adapters: names that tests also use as salts."""
LORA_FOLDERS = {name: HOME / "models" / f"{MODEL}-{name}" for name in LORAS}
READY_TIMEOUT = 300.0
TEST_TIMEOUT = 600
"""Seconds of one test on engines: the first to ask for them waits for their start, too."""


ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "a": ("vllm", ()),
    "b": ("vllm", ()),
    "c": ("sglang", ()),
    "d": ("sglang", (*sglang_cpu.HOST_TIER, "--max-total-tokens=3072")),
    "e": ("vllm", ("--enable-lora", "--max-lora-rank=8", f"--lora-modules={LORA}={LORA_FOLDERS[LORA]}")),
    "f": (
        "sglang",
        (
            *("--enable-lora", "--lora-backend=torch_native", "--lora-paths"),
            *(f"{name}={folder}" for name, folder in LORA_FOLDERS.items()),
        ),
    ),
}
"""Kind and more flags of each engine. The KV cache of `d` is small, so that its host tier is needed."""

_FOR_TESTS = {
    # /reset_prefix_cache, and responses that are kept
    "vllm": {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_RESPONSES_API_STORE": "1"},
    "sglang": {},
}

_TURNS = ("mixed_replicas", "sglang_replicas", "lora_replica", "lora_replicas")
"""Fixtures whose tests come last, in this order."""


class Replica:
    """One real engine with SmolLM2, on a port and event endpoints that it keeps over restarts."""

    def __init__(self, kind: str, spec: LocalReplica, executable: Path, crew: Crew) -> None:
        self.kind = kind
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
        kind, base = KINDS[self.kind], {**os.environ, **_FOR_TESTS[self.kind]}
        command = kind.command(self._spec, self._executable, base)
        self._child = self._crew.start(self.name, command, kind.environment(self._spec, base))

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Block until it serves."""
        deadline = time.monotonic() + timeout
        while not http.answers(f"{self.url}{KINDS[self.kind].ready}"):
            assert self._child.running, f"replica {self.name} ended while starting:\n{self.log_end()}"
            assert time.monotonic() < deadline, f"replica {self.name} is not ready:\n{self.log_end()}"
            time.sleep(0.2)

    def reset_cache(self) -> None:
        """Have it forget all KV."""
        path = "/flush_cache" if self.kind == "sglang" else "/reset_prefix_cache"
        httpx2.post(f"{self.url}{path}", timeout=30).raise_for_status()

    def kill(self) -> None:
        """End all of its processes without warning; returns when they are gone.

        Stopped first, none lives to tell clients of another one's end.
        """
        self._child.signal(signal.SIGSTOP)
        self._child.signal(signal.SIGKILL)
        processes.end([self._child.record], grace=0)
        self._child.process.wait()

    def end(self) -> None:
        """End it for good."""
        self.kill()

    def stop(self) -> None:
        """Freeze all of its processes (SIGSTOP); its connections stay open."""
        self._child.signal(signal.SIGSTOP)

    def cont(self) -> None:
        """Let frozen processes go on."""
        self._child.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Send a signal to its front end."""
        self._child.process.send_signal(number)

    @property
    def running(self) -> bool:
        """Whether its front end lives."""
        return self._child.running

    def resident(self) -> int:
        """Bytes of memory of its own that all of its processes hold; shared memory doesn't count."""
        total = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(status.parent.name)) == self._child.process.pid:
                    found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text())
                    total += int(found[1]) << 10 if found else 0
        return total

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


@contextlib.contextmanager
def ready(*replicas: Replica) -> Iterator[None]:
    """Go on once they serve; end them then, whatever happens."""
    try:
        for replica in replicas:
            replica.wait_ready()
        yield
    finally:
        for replica in replicas:
            replica.end()


@pytest.fixture(scope="session")
def small_model_folder() -> Path:
    """SmolLM2-135M-Instruct as a folder, made if missing, as is vLLM's environment."""
    fleet.prepare(options.Options(HOME, HOME / "up"), Progress(Console()))
    return HOME / "models" / MODEL


class Pool:
    """Real engines by name, two at a time: those that are asked for take the place of others."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._running: dict[str, Replica] = {}

    def of(self, *names: str) -> tuple[Replica, ...]:
        """These engines, ready: what the test before has done to them is undone."""
        for name in self._running.keys() - set(names):
            self._running.pop(name).kill()
        for name, cores in zip(names, machine.core_shares(os.sched_getaffinity(0), len(names)), strict=True):
            if name not in self._running:
                self._running[name] = self._started(name, cores)
        replicas = tuple(self._running[name] for name in names)
        for replica in replicas:
            replica.heal()
        return replicas

    def end(self) -> None:
        """End them all: the next test starts engines of its own."""
        while self._running:
            self._running.popitem()[1].kill()

    def _started(self, name: str, cores: tuple[int, ...]) -> Replica:
        kind, extra = ENGINES[name]
        each = fleet.ENGINE_MEMORY + machine.GIB + options.SMALL_MODEL_BYTES
        machine.require_memory(1, each, memory.available())
        made = fleet.prepare(options.Options(HOME, HOME / "up", engine=kind), Progress(Console()))
        spec = KINDS[kind].replica(
            name=name,
            model=str(HOME / "models" / MODEL),
            served_name=MODEL,
            port=free_port(),
            sockets=self._crew.sockets,
            cores=cores,
            extra=extra,
        )
        return Replica(kind, spec, made[kind].script(KINDS[kind].program), self._crew)


@pytest.fixture(scope="session")
def engine_pool() -> Iterator[Pool]:
    """Where this run's engines come from."""
    root = HOME / "test-engines"
    _end_those_of_killed_runs(root)
    folder = Folder(root / str(os.getpid()))
    folder.path.mkdir(parents=True)
    crew = Crew(folder, "")
    try:
        yield Pool(crew)
    finally:
        crew.end()
        shutil.rmtree(folder.path)


@pytest.fixture
def replicas(engine_pool: Pool) -> tuple[Replica, ...]:
    """Two vLLM replicas, `a` and `b`. What a test kills or freezes is whole again for the next one."""
    return engine_pool.of("a", "b")


@pytest.fixture(scope="session")
def adapters(small_model_folder: Path) -> None:
    """The adapters that `e` and `f` serve."""
    for seed, folder in enumerate(LORA_FOLDERS.values()):
        make_adapter(small_model_folder, folder, seed)


@pytest.fixture
def lora_replica(engine_pool: Pool, adapters: None) -> Replica:
    """vLLM's `e`, which serves a LoRA adapter beside the model, as `replicas`."""
    return engine_pool.of("e")[0]


@pytest.fixture
def lora_replicas(engine_pool: Pool, adapters: None) -> tuple[Replica, ...]:
    """vLLM's `e`, and SGLang's `f`, which serves its adapter too, and another, as `replicas`."""
    return engine_pool.of("e", "f")


@pytest.fixture
def mixed_replicas(engine_pool: Pool) -> tuple[Replica, ...]:
    """vLLM's `a` and SGLang's `c`, as `replicas`."""
    return engine_pool.of("a", "c")


@pytest.fixture
def sglang_replicas(engine_pool: Pool) -> tuple[Replica, ...]:
    """SGLang's `c`, and `d`, which has SGLang's host tier, as `replicas`."""
    return engine_pool.of("c", "d")


def _end_those_of_killed_runs(root: Path) -> None:
    for path in root.glob("*"):
        if not any(processes.is_alive(one.supervisor) for one in Folder(path).recorded()):
            state.down(Folder(path))
            shutil.rmtree(path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Tests on the same engines run together: changing engines takes a minute.
    items.sort(key=_turn)
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT))


def _turn(item: pytest.Item) -> int:
    names = getattr(item, "fixturenames", ())
    return max((turn for turn, name in enumerate(_TURNS, 1) if name in names), default=0)
