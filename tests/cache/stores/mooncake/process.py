"""A client of a Mooncake store: `python process.py URL`, then lines on stdin.

write N      store page N; answers with the outcome
read N       read it; answers with the outcome
stream       store one page after the other, until it is killed; says "going" after a few
"""

import itertools
import os
import sys
import threading

from cache.stores import open_store
from cache.tiers.base import Store
from tests.cache.stores.mooncake.pool import SETTINGS, get, put


def stream(store: Store) -> None:
    threading.Thread(target=end_with_the_test, daemon=True).start()
    for number in itertools.count():
        put(store, number, number + 1)
        if number == 20:
            print("going", flush=True)


def end_with_the_test() -> None:
    sys.stdin.read()
    os._exit(0)


def main(url: str) -> None:
    store = open_store(url, SETTINGS)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *number = line.split()
        if what == "stream":
            stream(store)
        at = int(number[0])
        print((get(store, at) if what == "read" else put(store, at, at + 1)[0]).value, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
