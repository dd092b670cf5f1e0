"""`object` against obstore's own get of the same bytes: on moto's S3 server, and on a local folder."""

import functools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import boto3
import numpy as np
import obstore

from benchmarks.report import Report
from benchmarks.stats import median_interval, paired_ratios
from benchmarks.tiers import lanes
from benchmarks.tiers.contender import Turn, rounds
from benchmarks.tiers.data import SPACE, buffer, cut, key
from cache.record import HEADER_BYTES
from cache.stores import Settings, open_store
from cache.stores.names import name_of, parse
from cache.stores.object import Object
from cache.tiers.lane import Lane

PAGE_BYTES = 1 << 20
PAGES = 64
ROUNDS = 20
TRIALS = 3
WIDTHS = (4, 8, 16, 32)
BUCKET = "bench-bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "anybody", "AWS_SECRET_ACCESS_KEY": "anything", "AWS_REGION": "us-east-1"}


def measure(report: Report, folder: Path) -> None:
    folder.mkdir(parents=True)
    with _server(folder) as endpoint:
        _gets(report, f"s3://{BUCKET}/bench?endpoint={endpoint}", "object get / obstore's own get")
    report.note("moto's server is one Python process: it bounds both sides of its rows.")
    _gets(report, f"file://{folder}/local", "object get / obstore's own get, local files in the page cache")


class Gets:
    """The same objects, got by us and by obstore alone."""

    def __init__(self, url: str) -> None:
        store = open_store(url, Settings(page_bytes=PAGE_BYTES, io_seconds=30.0))
        assert isinstance(store, Object)
        self.lane, self.client = Lane(store), store.shelf.client
        self.source, self.target = buffer(PAGES, PAGE_BYTES), buffer(PAGES, PAGE_BYTES)
        lanes.write(self.lane, 0, cut(self.source, PAGE_BYTES))
        names = (parse(entry.name) for entry in store.shelf.entries())
        generation = next(name.generation for name in names if name)
        self.names = [name_of(generation, SPACE, key(number)) for number in range(PAGES)]

    def ours(self, number: int) -> float:
        self.target[:] = bytes(len(self.target))
        seconds = lanes.read(self.lane, 0, cut(self.target, PAGE_BYTES))
        assert np.array_equal(self.target, self.source)
        return seconds

    def plain(self, width: int, number: int) -> float:
        """Seconds for obstore to get them into buffers of its own, unchecked."""

        def get(name: str) -> None:
            assert len(obstore.get(self.client, name).bytes()) == HEADER_BYTES + PAGE_BYTES

        with ThreadPoolExecutor(width) as pool:
            list(pool.map(time.sleep, [0.01] * width))  # its threads are there
            begin = time.perf_counter()
            list(pool.map(get, self.names))
            return time.perf_counter() - begin


def _gets(report: Report, url: str, figure: str) -> None:
    gets = Gets(url)
    trials: dict[str, Turn] = {str(width): functools.partial(gets.plain, width) for width in WIDTHS}
    tried = rounds(TRIALS, trials)
    width = min(WIDTHS, key=lambda width: statistics.median(tried[str(width)]))
    seconds = rounds(ROUNDS, {"ours": gets.ours, "obstore": functools.partial(gets.plain, width)})
    ratio = paired_ratios(seconds["obstore"], seconds["ours"])
    report.add(figure, ratio.median, spread=ratio.spread)
    report.note(f"{figure}: obstore alone with {width} threads, its best of {', '.join(map(str, WIDTHS))}.")
    for name, times in seconds.items():
        rate = median_interval([PAGES * PAGE_BYTES / one / 1e9 for one in times])
        report.add(
            f"{figure.partition(',')[2].strip() or 's3'}: {name}", rate.median, "GB/s", spread=rate.spread
        )
    gets.lane.close(5.0)
    gets.lane.store.close()


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """moto's S3 with a bucket, and credentials for it in the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (folder / "moto.log").open("w")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{port}"
    with patch.dict(os.environ, CREDENTIALS):
        try:
            _wait(port, server)
            boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
            yield endpoint
        finally:
            server.kill()
            server.wait()
            log.close()


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("moto's server ended")
