import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


class Mount:
    """A FUSE mount of a folder, and its switches."""

    def __init__(self, source: Path, target: Path) -> None:
        source.mkdir()
        target.mkdir()
        self.path = target
        script = Path(__file__).with_name("passthrough.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(source), str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell("go")
        while not target.is_mount():
            assert self._process.poll() is None, "the mount failed"

    def tell(self, what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        """Whoever is stuck in it gets an error."""
        self.tell("go")
        subprocess.run(["umount", "-l", str(self.path)], check=True)
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture(scope="module")
def shared_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        pytest.skip("mounting needs /dev/fuse and root")
    folder = tmp_path_factory.mktemp("fuse")
    mount = Mount(folder / "source", folder / "target")
    yield mount
    mount.close()


@pytest.fixture
def mount(shared_mount: Mount) -> Iterator[Mount]:
    """A healthy mount, and healthy again afterwards."""
    yield shared_mount
    shared_mount.tell("go")
    shared_mount.tell("fail 0")
    shared_mount.tell("delay 0")
