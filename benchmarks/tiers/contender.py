"""A contender: a process that writes and reads regions of pages when told to, and says how long it took.

It is told "write N" or "read N" in a line and answers with seconds in a line. `PAGES` pages of 1 MiB make a
region. What a contender reads is what it wrote.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.tiers.data import drop_caches

PAGE_BYTES = 1 << 20
PAGES = 256
REGION_BYTES = PAGES * PAGE_BYTES
ROUNDS = 20
REGIONS = 2 * ROUNDS + 1
"""As many as our tier is large, so that the rounds measure a full one."""

Turn = Callable[[int], float]
"""Region or round → seconds."""


class Contender:
    """The other end of `serve`."""

    def __init__(
        self,
        name: str,
        python: Path | str,
        script: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        folder.mkdir(parents=True)
        self._log = (folder.parent / f"{folder.name}.log").open("w")
        self._process = subprocess.Popen(
            [str(python), str(script), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self._answer()

    def write(self, region: int) -> float:
        """Seconds to write a region."""
        return self.ask("write", region)

    def read(self, region: int) -> float:
        """Seconds to read it back."""
        return self.ask("read", region)

    def ask(self, what: str, region: int) -> float:
        """Seconds that it takes for what only some contenders know."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what} {region}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("answer "):
                return line.removeprefix("answer ")
        raise RuntimeError(f"{self.name} ended: see {self._log.name}")


def serve(write: Turn, read: Turn, **more: Turn) -> None:
    """Do what the lines on stdin say. Whatever else is printed is no answer."""
    known = {"write": write, "read": read, **more}
    print("answer 0", flush=True)
    for line in sys.stdin:
        what, region = line.split()
        print("answer", known[what](int(region)), flush=True)


def rounds(
    count: int, turns: Mapping[str, Turn], before: Callable[[], object] = drop_caches
) -> dict[str, list[float]]:
    """Seconds of each contender in each round.

    A round times each once, and begins with another than the one before. What a contender left in the page
    cache is written back `before` the next one's turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(count):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            before()
            seconds[name].append(turns[name](number))
    return seconds
