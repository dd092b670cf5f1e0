"""The yardstick of tokenization: unseen messages, each encoded alone, in a process that does nothing else.

`python -m benchmarks.main.encoder FOLDER` reads a line "FIRST COUNT" and answers with one of JSON.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.main.texts import message

ROOT = Path(__file__).parent.parent.parent


class Encoded(NamedTuple):
    """What one message took: CPU time in the mean, wall time in the median, and its tokens."""

    cpu_us: float
    wall_us: float
    tokens: float


class EncodeProcess:
    """Another process's tokenizer."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._next = 1

    def encode(self, count: int) -> Encoded:
        """Encode `count` messages that this process has not seen."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._next} {count}\n")
        self._process.stdin.flush()
        self._next += count
        return Encoded(**json.loads(self._process.stdout.readline()))


@contextmanager
def encode_process(folder: Path, core: int) -> Iterator[EncodeProcess]:
    """Start it on a core, with the tokenizer in `folder` warm."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", "benchmarks.main.encoder", str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        encoder = EncodeProcess(process)
        encoder.encode(200)
        yield encoder
        assert process.stdin is not None
        process.stdin.close()


def main(folder: str) -> None:
    """Answer until the input ends. The same tokenizer and the same call as the gateway's."""
    from gateway.tokenization.dialects.base import TemplateOptions
    from gateway.tokenization.loading import load

    encode = load(folder, TemplateOptions()).backend.encode_batch_fast
    for line in sys.stdin:
        first, count = map(int, line.split())
        texts = [message(number) for number in range(first, first + count)]
        walls, tokens = [], []
        began = time.process_time()
        for text in texts:
            start = time.perf_counter()
            encodings = encode([text], add_special_tokens=False)
            walls.append(time.perf_counter() - start)
            tokens.append(len(encodings[0]))
        cpu = time.process_time() - began
        answer = Encoded(cpu / count * 1e6, statistics.median(walls) * 1e6, statistics.mean(tokens))
        print(json.dumps(answer._asdict()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
