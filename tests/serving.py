"""The gateway as a process of its own, for tests."""

import contextlib
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
import pytest

from tests.ports import free_port


@dataclass
class Serving:
    """A running `hpkv serve`."""

    process: "subprocess.Popen[bytes]"
    url: str
    client: httpx2.Client
    log: list[bytes] = field(default_factory=list)


@contextlib.contextmanager
def serving(
    *flags: str, scheme: str = "http", verify: ssl.SSLContext | bool = True, **environ: str
) -> Iterator[Serving]:
    """Start `hpkv serve` on a free port with these flags and variables, ready when this yields."""
    port = free_port()
    command = [sys.executable, "-m", "hpkv", "serve", "--port", str(port), *flags]
    env = {"PATH": "/usr/bin:/bin", **environ}
    url = f"{scheme}://127.0.0.1:{port}"
    with (
        subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process,
        httpx2.Client(base_url=url, verify=verify, timeout=60) as client,
    ):
        served = Serving(process, url, client)
        reader = threading.Thread(target=lambda: served.log.extend(process.stderr or ()))
        reader.start()
        try:
            _wait(served)
            yield served
        finally:
            process.kill()
            reader.join()


def _wait(served: Serving) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert served.process.poll() is None, b"".join(served.log).decode()
        with contextlib.suppress(httpx2.TransportError):
            served.client.get("/health")
            return
        time.sleep(0.05)
    pytest.fail("the gateway did not start")
