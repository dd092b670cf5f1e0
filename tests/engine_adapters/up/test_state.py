import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_adapters.up import processes, state
from engine_adapters.up.crew import Crew
from engine_adapters.up.errors import AlreadyRunning
from engine_adapters.up.processes import Identity
from engine_adapters.up.state import Folder, State

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "up").mkdir()
    return Folder(tmp_path / "up")


def test_what_is_written_is_read(folder: Folder) -> None:
    written = State(state.boot_id(), Identity(1, 2), "http://x", "/nowhere")
    folder.write(written)
    assert folder.recorded() == [written]


def test_an_earlier_boots_fleet_is_none(folder: Folder) -> None:
    folder.write(State("earlier", processes.identify(os.getpid()), "http://x", "/nowhere"))
    assert folder.recorded() == []
    assert state.down(folder) == 0


def test_nothing_recorded_nothing_ended(folder: Folder) -> None:
    assert state.down(folder) == 0


def test_a_second_holder_is_told_where_the_first_is(folder: Folder) -> None:
    with folder.hold():
        folder.write(State(state.boot_id(), processes.identify(os.getpid()), "http://x:1", "/nowhere"))
        with pytest.raises(AlreadyRunning, match=r"runs already at http://x:1.*hpkv down"), folder.hold():
            pytest.fail("held twice")


def test_a_crashed_fleets_processes_must_end_first(folder: Folder) -> None:
    crew = Crew(folder, "http://x:1")
    child = crew.start("a", SLEEP, os.environ)
    with pytest.raises(AlreadyRunning, match="its 1 processes"), folder.hold():
        pytest.fail("held beside them")
    processes.end([child.record], grace=10)
    child.process.wait()
    with folder.hold():
        assert folder.recorded() == []
    assert not crew.sockets.exists()


def test_down_ends_the_children_of_a_killed_supervisor_and_nobody_else(folder: Folder) -> None:
    supervisor = f"""
import os, signal, sys
from pathlib import Path
from engine_adapters.up.crew import Crew
from engine_adapters.up.state import Folder
crew = Crew(Folder(Path({str(folder.path)!r})), "http://x:1")
for name in "ab":
    crew.start(name, {SLEEP!r}, os.environ)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", supervisor], check=False)
    stranger = subprocess.Popen(SLEEP)
    try:
        (recorded,) = folder.recorded()
        assert state.down(folder) == 2
        assert not any(child.members() for child in recorded.children)
        assert not Path(recorded.sockets).exists()
        assert folder.recorded() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_crew_ends_what_it_started(folder: Folder) -> None:
    crew = Crew(folder, "http://x:1")
    child = crew.start("a", SLEEP, os.environ)
    crew.end()
    assert not child.running
    assert folder.recorded() == []
    assert not crew.sockets.exists()
