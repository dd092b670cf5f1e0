"""`hpkv up` over fake engines: what it prints, what it survives, what it leaves."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import pytest

from engine_adapters.up import http, state
from engine_adapters.up.state import Folder
from tests.engines import MODEL
from tests.fakes.engine import FakeEngine
from tests.ports import free_port

FAKE_VLLM = """\
#!{python}
import sys, uvicorn
from tests.fakes.engine import FakeEngine
flags = dict(arg.removeprefix("--").partition("=")[::2] for arg in sys.argv[3:])
if "die" in flags:
    sys.exit("no such flag: --die")
engine = FakeEngine(flags["served-model-name"])
engine.start()
uvicorn.run(engine, port=int(flags["port"]))
"""

DRIVER = """\
import sys
from pathlib import Path
from rich.console import Console
from engine_adapters.tiers import parse_tiers
from engine_adapters.up import fleet
from engine_adapters.up.environments import Environment
from engine_adapters.up.errors import UpError
from engine_adapters.up.options import Options
from engine_adapters.up.progress import Progress
try:
    made = Environment(Path({environment!r}))
    fleet.up({options}, Progress(Console()), lambda options, progress: dict.fromkeys(options.kinds, made))
except UpError as error:
    sys.exit(str(error))
"""

READY = "The gateway is at"


class Running:
    """A `hpkv up` as a process, and what it prints."""

    def __init__(self, command: list[str], folder: Folder) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.folder = folder
        self.output = ""
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            for line in out:
                self._lines.put(line)
        self._lines.put("")

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Read on until `text` has been printed."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line, f"ended without {text!r}:\n{self.output}"
            self.output += line

    def wait(self, seconds: float = 30) -> int:
        """Wait for its end; return its exit status."""
        code = self.process.wait(timeout=seconds)
        self._reader.join()
        while line := self._lines.get():
            self.output += line
        return code

    def child(self, name: str) -> int:
        """The number of a child's first process."""
        (recorded,) = self.folder.recorded()
        return next(child.leader.pid for child in recorded.children if child.name == name)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "up")


Run = Callable[[list[str]], Running]


@pytest.fixture
def run(folder: Folder) -> Iterator[Run]:
    started: list[Running] = []

    def start(command: list[str]) -> Running:
        started.append(Running(command, folder))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.wait()
    state.down(folder)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with contextlib.closing(FakeEngine()) as fake:
        fake.start()
        yield fake


def over(engine: FakeEngine, folder: Folder, port: int) -> list[str]:
    hpkv = [sys.executable, "-m", "hpkv", "up"]
    return [*hpkv, f"--engines={engine.url}", f"--port={port}", f"--state={folder.path}"]


def with_fake_vllm(folder: Folder, *engine_args: str) -> list[str]:
    executable = folder.path.parent / "env/bin/vllm"
    executable.parent.mkdir(parents=True)
    executable.write_text(FAKE_VLLM.format(python=sys.executable))
    executable.chmod(executable.stat().st_mode | stat.S_IXUSR)
    first = free_port(2)
    options = (
        f"Options(Path({str(folder.path.parent)!r}), Path({str(folder.path)!r}), port={free_port()}, "
        f"engine_port={first}, tiers=parse_tiers('host=1MiB'), engine_args={engine_args})"
    )
    environment = str(folder.path.parent / "env")
    return [sys.executable, "-c", DRIVER.format(options=options, environment=environment)]


def printed_snippets(output: str) -> tuple[str, str]:
    """The curl and the SDK snippet, exactly as they were printed."""
    curl = re.search(r"^curl .*?(?=\n\n)", output, re.MULTILINE | re.DOTALL)
    sdk = re.search(r"^from openai .*?(?=\n\n|\Z)", output, re.MULTILINE | re.DOTALL)
    assert curl is not None
    assert sdk is not None
    return curl.group(), sdk.group()


def assert_snippets_work(output: str) -> None:
    curl, sdk = printed_snippets(output)
    by_curl = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60, check=True)
    assert '"chat.completion"' in by_curl.stdout
    by_sdk = subprocess.run(
        [sys.executable, "-c", sdk], capture_output=True, text=True, timeout=60, check=True
    )
    assert by_sdk.stdout.strip()


def test_over_a_running_engine(run: Run, engine: FakeEngine, folder: Folder) -> None:
    port = free_port()
    up = run(over(engine, folder, port))
    up.wait_for("print(answer")
    assert "Replica a names no KV events that can be followed from here" in up.output
    assert "Tiers" not in up.output
    assert_snippets_work(up.output)

    second = run(over(engine, folder, free_port()))
    assert second.wait() == 1
    assert "hpkv up runs already" in second.output
    assert "make up HPKV_UP_STATE=FOLDER" in second.output
    assert up.process.poll() is None

    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 0
    assert not http.answers(f"http://127.0.0.1:{port}/livez")
    assert http.answers(f"{engine.url}/health")  # not started here, not ended here
    assert folder.recorded() == []


@pytest.mark.slow
def test_down_ends_a_running_one(run: Run, engine: FakeEngine, folder: Folder) -> None:
    up = run(over(engine, folder, free_port()))
    up.wait_for(READY)
    down = [sys.executable, "-m", "hpkv", "down", f"--state={folder.path}"]
    told = subprocess.run(down, capture_output=True, text=True, check=True)
    assert told.stdout == "ended 2 processes\n"
    assert up.wait() == 0
    told = subprocess.run(down, capture_output=True, text=True, check=True)
    assert told.stdout.startswith(f"nothing is running, by what {folder.path} says")


@pytest.mark.slow
def test_a_dead_gateway_ends_all_with_its_log(run: Run, engine: FakeEngine, folder: Folder) -> None:
    up = run(over(engine, folder, free_port()))
    up.wait_for(READY)
    os.kill(up.child("gateway"), signal.SIGKILL)
    assert up.wait() == 1
    assert "the gateway ended (signal 9). The end of its log" in up.output
    assert folder.recorded() == []


def test_an_engine_that_does_not_answer(run: Run, engine: FakeEngine, folder: Folder) -> None:
    engine.stop()
    up = run(over(engine, folder, free_port()))
    assert up.wait() == 1
    assert engine.url in up.output
    assert "correct --engines" in up.output


def test_a_folder_for_tiers_that_cannot_be_used(run: Run, folder: Folder) -> None:
    up = run(
        [
            *(sys.executable, "-m", "hpkv", "up", f"--state={folder.path}", f"--port={free_port()}"),
            *(f"--engine-port={free_port(2)}", "--tiers=host=1MiB,ssd=/proc/kv:1GiB"),
        ]
    )
    assert up.wait() == 1
    assert "hpkv up: ssd: /proc/kv can't be used" in up.output


@pytest.mark.slow
def test_replicas_come_and_go(run: Run, folder: Folder) -> None:
    up = run(with_fake_vllm(folder))
    up.wait_for("print(answer")
    assert MODEL in up.output
    assert "Tiers of each replica: gpu+host (host=1MiB)" in up.output
    assert_snippets_work(up.output)
    os.kill(up.child("b"), signal.SIGKILL)
    up.wait_for("Replica b ended (signal 9); the gateway goes on")
    assert up.process.poll() is None
    os.kill(up.child("a"), signal.SIGKILL)
    assert up.wait() == 1
    assert "no replica is left" in up.output
    assert folder.recorded() == []


def test_a_replica_that_fails_to_start_shows_why(run: Run, folder: Folder) -> None:
    up = run(with_fake_vllm(folder, "--die"))
    assert up.wait() == 1
    assert "ended while starting (exit status 1)" in up.output
    assert "no such flag: --die" in up.output
    assert folder.recorded() == []
