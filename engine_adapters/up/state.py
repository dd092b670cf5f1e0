"""What a running fleet leaves on disk, so that `hpkv down` finds it, also after a crash.

The folder holds `state.json`, the gateway's `hpkv.yaml` and `logs/`. A running `hpkv up` holds its lock.
"""

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from . import processes
from .errors import AlreadyRunning
from .processes import Identity, Record

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""


class State(msgspec.Struct, frozen=True):
    """A fleet. `boot` tells this boot's process numbers from others; `sockets` is a folder to remove."""

    boot: str
    supervisor: Identity
    url: str
    sockets: str
    children: tuple[Record, ...] = ()


def boot_id() -> str:
    """Return what changes with every boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Folder:
    """A fleet's state folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "state.json"

    def log(self, name: str) -> Path:
        """Where the process called `name` writes."""
        return self.path / "logs" / f"{name}.log"

    def recorded(self) -> list[State]:
        """Return the state of this boot's fleet, or nothing; one of an earlier boot is as good as none."""
        try:
            state = msgspec.json.decode(self.file.read_bytes(), type=State)
        except FileNotFoundError:
            return []
        return [state] if state.boot == boot_id() else []

    def write(self, state: State) -> None:
        """Record `state`; a reader sees the old one or the new one, whole."""
        scratch = self.file.with_suffix(".tmp")
        scratch.write_bytes(msgspec.json.encode(state))
        scratch.rename(self.file)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Be the only fleet here. Raises AlreadyRunning, also while a crashed one's processes live."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                where = "".join(f" at {state.url}" for state in self.recorded())
                raise AlreadyRunning(
                    f"hpkv up runs already{where}; end it with `hpkv down` (`make down`), or give this one a "
                    "state folder and ports of its own: --state FOLDER --port PORT --engine-port PORT "
                    "(make up HPKV_UP_STATE=FOLDER PORT=PORT ENGINE_PORT=PORT; its `make down` needs that "
                    "HPKV_UP_STATE too)"
                ) from None
            for state in self.recorded():
                if left := sum(len(child.members()) for child in state.children):
                    raise AlreadyRunning(
                        f"an earlier hpkv up ended without its {left} processes; end them with `hpkv down` "
                        "(`make down`)"
                    )
                self.clear(state)
            yield

    def clear(self, state: State) -> None:
        """Forget a fleet that has ended; its logs stay."""
        shutil.rmtree(state.sockets, ignore_errors=True)
        self.file.unlink(missing_ok=True)


def down(folder: Folder) -> int:
    """End the fleet recorded in `folder` and nothing else. Returns how many of its processes there were."""
    ended = 0
    for state in folder.recorded():
        ended = sum(len(child.members()) for child in state.children)
        ended += _end_supervisor(state.supervisor)
        # The supervisor ends its children and clears the state; what it could not do is done here.
        processes.end(state.children, GRACE)
        folder.clear(state)
    return ended


def _end_supervisor(supervisor: Identity) -> int:
    if not processes.is_alive(supervisor):
        return 0
    os.kill(supervisor.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE + 5
    while processes.is_alive(supervisor):
        if time.monotonic() > deadline:
            os.kill(supervisor.pid, signal.SIGKILL)
        time.sleep(processes.POLL)
    return 1
