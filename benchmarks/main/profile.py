"""Where the Python servers' CPU time goes: py-spy under load, a table, and folded stacks to keep."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.main import fifth_turn, wrk
from benchmarks.main.rig import (
    Maker,
    await_prefixes,
    gateway,
    passthrough,
    running_rig,
    tokenizing_gateway,
)
from benchmarks.main.sse_client import stream
from benchmarks.peers import peer
from benchmarks.servers import HOME, Server

SECONDS, CONNECTIONS, RATE, ROWS = 10, 64, 500, 45
IDLE = "_worker (concurrent/futures/thread.py)"
"""A pool's thread that waits for work; py-spy takes it for a running one."""


class Profiled(NamedTuple):
    """What is profiled: servers, and what loads them for some seconds."""

    makers: Sequence[Maker]
    load: Callable[[Server, int], object]


def _tokenized(server: Server, seconds: int) -> None:
    await_prefixes(server)
    wrk.load(server, CONNECTIONS, seconds, wrk.unseen())


def _fifth_turn(server: Server, seconds: int) -> None:
    await_prefixes(server)
    fifth_turn.load(server, seconds)


LOADS = {
    "requests": Profiled((gateway, passthrough), lambda server, s: wrk.load(server, CONNECTIONS, s)),
    "streams": Profiled(
        (gateway, passthrough), lambda server, s: asyncio.run(stream(server, CONNECTIONS, s, 100))
    ),
    "tokenized": Profiled((tokenizing_gateway,), _tokenized),
    "fifth_turn": Profiled((tokenizing_gateway,), _fifth_turn),
}


def profile(names: Sequence[str]) -> None:
    """Profile the servers under these loads."""
    folder = HOME / "profiles"
    folder.mkdir(exist_ok=True)
    for name in [name for name in LOADS if name in names]:
        makers, load = LOADS[name]
        with running_rig(*makers) as rig:
            for server in rig.contenders:
                load(server, 2)
                folded = folder / f"{server.name}-{name}.folded"
                command = [str(peer("py-spy") / "py-spy"), "record", "--format", "raw"]
                command += ["--output", str(folded), "--pid", str(server.process.pid)]
                command += ["--duration", str(SECONDS), "--rate", str(RATE)]
                with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                    load(server, SECONDS + 1)
                _show(server, name, folded)


def _show(server: Server, load: str, folded: Path) -> None:
    """Shares of the samples: by package, alone; then by function, with and without what it calls."""
    packages: Counter[str] = Counter()
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in folded.read_text(encoding="utf-8").splitlines():
        stack, _, seen = line.rpartition(" ")
        frames = [_function(frame) for frame in stack.split(";")]
        if frames[-1] == IDLE:
            continue
        own[frames[-1]] += int(seen)
        packages[frames[-1].partition(" (")[2].partition("/")[0].rstrip(")")] += int(seen)
        for frame in set(frames):
            total[frame] += int(seen)
    samples = sum(own.values())
    console = Console(width=120)
    title = f"{server.name}, {load}"
    shares = (f"{name} {100 * count / samples:.1f} %" for name, count in packages.most_common(12))
    console.print(f"\n{title}: {', '.join(shares)}", markup=False, highlight=False)
    table = Table("function")
    for column in ("with callees", "alone"):
        table.add_column(column, justify="right")
    # What is in every sample is only the way down to the event loop.
    inner = [(name, count) for name, count in total.most_common() if count < 0.99 * samples]
    for name, count in inner[:ROWS]:
        table.add_row(name, f"{100 * count / samples:.1f} %", f"{100 * own[name] / samples:.1f} %")
    console.print(table)


def _function(frame: str) -> str:
    """The function and the file, without the line: its lines add up."""
    return frame.rpartition(":")[0] + ")" if ":" in frame else frame
