"""`python -m benchmarks.index.memory`: bytes of resident memory that an index adds, for each of 1M distinct
blocks."""

import gc
import os

from benchmarks.index.ours import FILLED, Ours, payloads
from benchmarks.process import ProcessTree

ROUNDS = 64
BLOCKS = 1 << 20


def main() -> None:
    warm = Ours()
    warm.apply(payloads(4096, 0), 0)
    del warm
    gc.collect()
    process = ProcessTree(os.getpid())
    before = process.rss_bytes()
    ours = Ours()
    for number in range(ROUNDS):
        ours.apply(payloads(BLOCKS // ROUNDS, number + 1), number % FILLED)
    gc.collect()
    added = process.rss_bytes() - before
    print(added / ours.index.state().blocks, ours.index.state().blocks)


if __name__ == "__main__":
    main()
