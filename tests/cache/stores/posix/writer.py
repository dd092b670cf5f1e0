"""A process that stores pages until it is killed: `python writer.py FOLDER`."""

import itertools
import sys
from pathlib import Path

from cache.stores import Settings
from cache.stores.posix import Posix
from cache.testing import PAGE_BYTES, SPACE, content, page
from cache.tiers.base import Write


def main(folder: Path) -> None:
    store = Posix(folder, Settings(page_bytes=PAGE_BYTES))
    for number in itertools.count():
        store.write(SPACE, [Write(page(number), [content(number)], 1)])
        if number == 20:
            print("going", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
