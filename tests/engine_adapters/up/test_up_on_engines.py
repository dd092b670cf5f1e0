"""`make up` and `make down` as a person uses them, on real engines."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapters.up import http, processes, state
from engine_adapters.up.state import Folder
from tests.engine_adapters.up.test_fleet import Running, assert_snippets_work
from tests.engines import HOME
from tests.ports import free_port

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.engine


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "up")
    yield folder
    state.down(folder)


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that looks like a replica, and is none of ours."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "vllm", "serve"]) as process:
        yield process
        process.kill()


def test_up_paste_crash_down(
    folder: Folder, stranger: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPKV_HOME", str(HOME))
    monkeypatch.setenv("HPKV_UP_STATE", str(folder.path))
    port, engine_port = free_port(), free_port(2)
    make = ["make", "--directory", str(ROOT), "--no-print-directory"]
    up = Running([*make, "up", f"PORT={port}", f"ENGINE_PORT={engine_port}"], folder)
    up.wait_for("print(answer", seconds=400)
    assert f"http://127.0.0.1:{port}" in up.output
    assert_snippets_work(up.output)

    (recorded,) = folder.recorded()
    ours = set[processes.Identity]().union(*(child.members() for child in recorded.children))
    assert {child.name for child in recorded.children} == {"a", "b", "gateway"}
    os.kill(recorded.supervisor.pid, 9)
    assert up.wait() != 0
    assert all(processes.is_alive(process) for process in ours)

    down = subprocess.run([*make, "down"], capture_output=True, text=True, timeout=60, check=True)
    assert down.stdout == f"ended {len(ours)} processes\n"
    assert not any(processes.is_alive(process) for process in ours)
    assert not any(http.answers(f"http://127.0.0.1:{p}/health") for p in (port, engine_port, engine_port + 1))
    assert not Path(recorded.sockets).exists()
    assert stranger.poll() is None
