"""A FUSE mount in a process of its own."""

import subprocess
import sys
from pathlib import Path


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
