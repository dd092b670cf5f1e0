"""Child processes that can be ended whole, also by somebody who did not start them, and nothing else.

Each child leads a session of its own and writes to a log of its own; both are inherited by all that it
starts. A process belongs to a child if it is in that session and holds that log, so that a number that the
system gave to somebody else meanwhile is never mistaken for it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

PROC = Path("/proc")
POLL = 0.1


class Identity(NamedTuple):
    """A process, told from a later one with the same number by its start (clock ticks since boot)."""

    pid: int
    started: int


class _Stat(NamedTuple):
    state: str
    session: int
    started: int


def _stat(pid: int) -> _Stat:
    """Fields 3, 6 and 22 of proc(5)'s stat. Raises ProcessLookupError."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    return _Stat(fields[0], int(fields[3]), int(fields[19]))


def identify(pid: int) -> Identity:
    """Return who has this number now. Raises ProcessLookupError."""
    return Identity(pid, _stat(pid).started)


def is_alive(identity: Identity) -> bool:
    """Whether that very process still runs."""
    try:
        stat = _stat(identity.pid)
    except ProcessLookupError:
        return False
    return stat.started == identity.started and stat.state != "Z"


class Record(msgspec.Struct, frozen=True):
    """What must be known of a child to find all of its processes again."""

    name: str
    leader: Identity
    log: str

    def members(self) -> set[Identity]:
        """Return its processes that still run."""
        try:
            if _stat(self.leader.pid).started != self.leader.started:
                return set()  # the number went to somebody else, which it can't while our session lives
        except ProcessLookupError:
            pass
        return {process for process in _session(self.leader.pid) if _holds(process.pid, self.log)}


def _session(leader: int) -> Iterator[Identity]:
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = _stat(int(entry.name))
            except ProcessLookupError:
                continue
            if stat.session == leader and stat.state != "Z":
                yield Identity(int(entry.name), stat.started)


def _holds(pid: int, log: str) -> bool:
    for fd in ("1", "2"):
        try:
            if str((PROC / str(pid) / "fd" / fd).readlink()).removesuffix(" (deleted)") == log:
                return True
        except OSError:
            continue
    return False


class Child:
    """A process that this one has started."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log.resolve()
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.record = Record(name, identify(self.process.pid), str(self.log))

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.record.name

    @property
    def running(self) -> bool:
        """Whether its first process has not ended."""
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each of its processes."""
        _signal(self.record.members(), number)

    def log_end(self, lines: int = 20) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def end(records: Iterable[Record], grace: float) -> int:
    """End all processes of all `records`: SIGTERM, then SIGKILL to what is left after `grace` seconds.

    Returns how many there were.
    """
    records = list(records)
    found = set[Identity]().union(*(record.members() for record in records))
    _signal(found, signal.SIGTERM)
    _signal(found, signal.SIGCONT)  # a stopped one can't hear the first
    deadline = time.monotonic() + grace
    while left := _left(found, records):
        if time.monotonic() > deadline:
            _signal(left, signal.SIGKILL)
        time.sleep(POLL)
    return len(found)


def _left(found: set[Identity], records: Iterable[Record]) -> set[Identity]:
    """Add newly born processes to `found`; return those that run. A dying one has let go of its log."""
    found.update(*(record.members() for record in records))
    return {process for process in found if is_alive(process)}


def _signal(processes: Iterable[Identity], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue
