"""Where the Python servers' CPU time goes: py-spy under the two loads, a table, and folded stacks to keep."""

import asyncio
import subprocess
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.main import requests
from benchmarks.main.rig import Rig
from benchmarks.main.sse_client import stream
from benchmarks.peers import peer
from benchmarks.servers import HOME, Server

SECONDS, CONNECTIONS, RATE, ROWS = 10, 64, 500, 45


def profile(rig: Rig) -> None:
    """Profile the gateway and the passthrough under both loads."""
    folder = HOME / "profiles"
    folder.mkdir(exist_ok=True)
    for server in rig.contenders[:2]:
        for load in ("requests", "streams"):
            folded = folder / f"{server.name}-{load}.folded"
            command = [str(peer("py-spy") / "py-spy"), "record", "--format", "raw", "--output", str(folded)]
            command += ["--pid", str(server.process.pid), "--duration", str(SECONDS), "--rate", str(RATE)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
                if load == "requests":
                    requests.load(server, CONNECTIONS, SECONDS + 1)
                else:
                    asyncio.run(stream(server, CONNECTIONS, SECONDS + 1, 100))
            _show(server, load, folded)


def _show(server: Server, load: str, folded: Path) -> None:
    """Shares of the samples: by package, alone; then by function, with and without what it calls."""
    packages: Counter[str] = Counter()
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in folded.read_text(encoding="utf-8").splitlines():
        stack, _, seen = line.rpartition(" ")
        frames = [_function(frame) for frame in stack.split(";")]
        own[frames[-1]] += int(seen)
        packages[frames[-1].partition(" (")[2].partition("/")[0].rstrip(")")] += int(seen)
        for frame in set(frames):
            total[frame] += int(seen)
    samples = sum(own.values())
    console = Console(width=120)
    title = f"{server.name}, {load}, {CONNECTIONS} connections"
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
