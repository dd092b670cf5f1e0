"""Server processes that a benchmark starts, pins, waits for and ends."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.process import ProcessTree

HOME = Path(os.environ.get("HPKV_HOME", Path(__file__).parent.parent / ".hpkv"))


class ServerFailed(Exception):
    """A server that did not come up; the message ends with the end of its log."""


class Server:
    """A process that listens on a loopback port, pinned to one core; a context manager.

    Args:
        core: where it runs; None leaves it to the kernel.
        ready: path that answers 200 once the server is up.
        cwd: the process's working folder.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        *,
        core: int | None = None,
        ready: str = "/health",
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self._command = [*(("taskset", "-c", str(core)) if core is not None else ()), *command]
        self._ready = ready
        self._cwd = cwd
        self._environment = dict(os.environ, **(environment or {}))
        self._log = HOME / "logs" / f"bench-{name}.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> ProcessTree:
        return ProcessTree(self._process.pid)

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._cwd, env=self._environment
            )
        try:
            self._wait(timeout_s=60)
        except ServerFailed:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
            try:
                connection.request("GET", self._ready)
                if connection.getresponse().status == 200:
                    return
            except (OSError, HTTPException):
                pass  # not listening yet
            finally:
                connection.close()
            time.sleep(0.1)
        tail = self._log.read_text(errors="replace")[-2000:]
        raise ServerFailed(
            f"{self.name} did not answer {self._ready} within {timeout_s:g} s. Its log ends:\n{tail}"
        )

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def debian_tool(name: str) -> str:
    """Path of a program that Debian packages under its own name; root installs it where it is missing."""
    if shutil.which(name) is None and os.geteuid() == 0:
        subprocess.run(["apt-get", "install", "-y", "-q", name], check=False, stdout=subprocess.DEVNULL)
    path = shutil.which(name)
    if path is None:
        raise ServerFailed(f"{name} is missing: apt-get install {name}")
    return path
