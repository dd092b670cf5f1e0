"""`python -m benchmarks.index`: the index against Dynamo's, in turns."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import numpy as np

from benchmarks.index.ours import Ours, payloads
from benchmarks.index.workload import prompt
from benchmarks.peers import PeerMissing, peer
from benchmarks.report import Report
from benchmarks.stats import Interval, median_interval
from cache.prefix import PrefixKeys, seed

FILL_ROUNDS = 16
FILL_BLOCKS = (1 << 20) // FILL_ROUNDS - 8192
MATCH_ROUNDS = 10
DYNAMO = Path(__file__).with_name("peer.py")


class Peer:
    """Dynamo's index in a process of its own, idle while ours is measured."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [str(peer("dynamo") / "python"), str(DYNAMO)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, *command: object) -> list[float]:
        """Seconds that each repeat of the command took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*command, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Dynamo's process ended at {command}: its error is above")
        answer = json.loads(line)
        return answer if isinstance(answer, list) else [answer]


def main() -> None:
    report = Report("index")
    try:
        dynamo = Peer()
    except PeerMissing as missing:
        report.note(str(missing))
        sys.exit(report.finish() or 1)
    with dynamo:
        ours = Ours()
        _events(report, ours, dynamo)
        ours.hold()
        dynamo.ask("hold")
        report.add("distinct blocks in the index", ours.index.state().blocks)
        _matches(report, ours, dynamo, 12_000, 1e6, "µs")
        _matches(report, ours, dynamo, 131_072, 1e3, "ms")
    _parts(report)
    _memory(report)
    report.note(
        "Ours runs in one thread, Dynamo in several. Its events come hashed and as JSON, ours as msgpack."
    )
    report.note("A prompt is an array of u32 to us and a list to Dynamo, as each takes it.")
    report.note("By CPU time: without the time that other processes had the core, were there any.")
    sys.exit(report.finish())


def _events(report: Report, ours: Ours, dynamo: Peer) -> None:
    mine, theirs = [], []
    for number in range(FILL_ROUNDS):
        messages = payloads(FILL_BLOCKS, number)
        mine.append(ours.apply(messages, number))
        theirs.append(dynamo.ask("apply", FILL_BLOCKS, number)[0])
    _rate(report, "events applied, decoding included", [took.wall for took in mine])
    _rate(report, "events applied, decoding included, by CPU time", [took.cpu for took in mine])
    _rate(report, "events applied, Dynamo", theirs)
    ratios = [b / a.wall for a, b in zip(mine, theirs, strict=True)]
    _add(report, "events applied, ours / Dynamo's", median_interval(ratios), "")


def _rate(report: Report, figure: str, seconds: list[float]) -> None:
    _add(report, figure, median_interval([FILL_BLOCKS / took for took in seconds]), "blocks/s")


def _matches(report: Report, ours: Ours, dynamo: Peer, length: int, scale: float, unit: str) -> None:
    mine, theirs = [], []
    for _ in range(MATCH_ROUNDS):
        mine += ours.match(length)
        theirs += dynamo.ask("match", length)
    name = f"{length:,}-token prompt"
    _add(report, f"{name}, prefix keys + match", median_interval([took.wall * scale for took in mine]), unit)
    by_cpu = median_interval([took.cpu * scale for took in mine])
    _add(report, f"{name}, prefix keys + match, by CPU time", by_cpu, unit)
    _add(report, f"{name}, Dynamo's hash + match", median_interval([took * scale for took in theirs]), unit)


def _parts(report: Report) -> None:
    tokens = prompt(12_000, 0)
    ids = np.array(tokens, np.uint32)
    keys = median_interval([_seconds(lambda: PrefixKeys(ids, seed()).at(16)) * 1e6 for _ in range(500)])
    _add(report, "12,000-token prompt, prefix keys alone", keys, "µs")
    listed = median_interval([_seconds(lambda: np.array(tokens, np.uint32)) * 1e6 for _ in range(100)])
    _add(report, "12,000 tokens, list to array", listed, "µs")


def _memory(report: Report) -> None:
    command = [sys.executable, "-m", "benchmarks.index.memory"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    report.add("memory a distinct block", float(told[0]), "B")


def _seconds(what: object) -> float:
    assert callable(what)
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


def _add(report: Report, figure: str, interval: Interval, unit: str) -> None:
    report.add(figure, interval.median, unit, spread=interval.spread)


if __name__ == "__main__":
    main()
