"""A process that stores pages until it is killed: `python writer.py FOLDER FIRST CAP`."""

import itertools
import sys
from pathlib import Path

from cache.testing import BASE, PAGE_BYTES, SPACE, content, page
from cache.tiers.base import Write
from cache.tiers.ssd import Limits, Ssd


def main(folder: Path, first: int, cap: int) -> None:
    contents = [content(number) for number in range(64)]
    store = Ssd(folder, BASE.fingerprint, PAGE_BYTES, Limits(cap=cap, free_floor=0))
    print(store.usage().pages, flush=True)
    for number in itertools.count(first):
        store.write(SPACE, [Write(page(number), [contents[number % 64]], number + 1)])
        if number % 16 == 0:
            store.tend()
        if number == first + 20:
            print("going", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
