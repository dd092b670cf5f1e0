"""Load from wrk, a closed loop of a number of connections, and what it costs the server."""

import itertools
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.main.texts import sentences_file
from benchmarks.servers import Server, ServerFailed, debian_tool

FOLDER = Path(__file__).parent
SECONDS, WARM_SECONDS = 2, 1
_RUN_NUMBERS = 10_000_000
"""Messages a run may number: no two runs share any."""

_runs = itertools.count(1)


class Script(NamedTuple):
    """What wrk sends: a file beside this one and its arguments."""

    name: str
    arguments: tuple[str, ...] = ()


SEEN = Script("wrk.lua")
"""64 chats in turn."""


def unseen() -> Script:
    """Chats that no other run has sent."""
    return Script("unseen.lua", (str(sentences_file()), str(next(_runs) * _RUN_NUMBERS)))


class Load(NamedTuple):
    """One run of wrk."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float


@dataclass
class Samples:
    """One server's repeats, in µs."""

    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)


def load(server: Server, connections: int, seconds: int, script: Script = SEEN) -> Load:
    """One run. Raises ServerFailed if any request failed."""
    command = [debian_tool("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s"]
    command += ["-s", str(FOLDER / script.name), server.url, "--", *script.arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = json.loads(output.strip().splitlines()[-1])
    failed = result.pop("failed")
    done = Load(**result)
    if failed or not done.requests:
        raise ServerFailed(f"{server.name}: {failed} of {done.requests} requests failed")
    return done


def repeat(server: Server, connections: int, samples: Samples, *, seen: bool) -> None:
    """One more of a server's repeats, of chats that were seen before or of such that weren't."""
    load(server, connections, WARM_SECONDS, SEEN if seen else unseen())
    before = server.process.cpu_seconds()
    done = load(server, connections, SECONDS, SEEN if seen else unseen())
    samples.cpu.append((server.process.cpu_seconds() - before) / done.requests * 1e6)
    samples.p50.append(done.p50_us)
    samples.p99.append(done.p99_us)
