"""A real Mooncake master, clients of it in processes of their own, and what their tests share."""

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from cache.memory import allocate
from cache.stores import Settings, address, open_store
from cache.stores.mooncake import Mooncake
from cache.stores.mooncake.client import Client, connect
from cache.stores.mooncake.options import Options
from cache.stores.names import name_of
from cache.testing import PAGE_BYTES, SPACE, content, key, page
from cache.tiers.base import Outcome, Read, Store, Write
from tests.ports import free_port
from tests.waiting import until

SETTINGS = Settings(page_bytes=PAGE_BYTES)


class Borrowed:
    """A client that somebody else will close; tests put faults in by overriding its calls."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def close(self) -> int:
        return 0


class Master:
    """`mooncake_master` on loopback; a context manager."""

    def __init__(self, log: Path, *flags: str) -> None:
        self.port = free_port(2)
        self.admin = self.port + 1
        self._log = log
        self._flags = flags
        self._client: Client = None
        self._clients: list[Client] = []
        self._processes: list[Process] = []

    def __enter__(self) -> "Master":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on()
        for client in self._clients:
            client.close()  # a client that is left without its master aborts the process that it is in
        for process in self._processes:
            process.kill()
        self.kill()

    def start(self) -> None:
        """Start it, or start it anew."""
        addresses = "--rpc_address=127.0.0.1", "--metrics_host=127.0.0.1"
        ports = f"--rpc_port={self.port}", f"--metrics_port={self.admin}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mooncake.cli", *addresses, *ports, *self._flags],
                stdout=log,
                stderr=log,
            )
        until(self._healthy)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def hang(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task").iterdir
        until(lambda: all(" T " in (thread / "stat").read_text() for thread in threads()))

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def url(self, prefix: str, segment: str = "0") -> str:
        return f"mooncake://127.0.0.1:{self.port}/{prefix}?segment={segment}&admin=127.0.0.1:{self.admin}"

    def open(self, prefix: str, segment: str = "0", settings: Settings = SETTINGS) -> Mooncake:
        """A store with a client of its own."""
        store = open_store(self.url(prefix, segment), settings)
        assert isinstance(store, Mooncake)
        self._clients.append(store._client)
        return store

    def spawn(self, prefix: str, segment: str = "0") -> "Process":
        """A client in a process of its own."""
        self._processes.append(Process(self.url(prefix, segment)))
        return self._processes[-1]

    def share(self, prefix: str, settings: Settings = SETTINGS, client: Client = None) -> Mooncake:
        """A store on the one client that all tests of a module share: each takes a second to end."""
        options = Options.parse(address.parse(self.url(prefix)))
        if self._client is None:
            self._client = connect(options)
            self._clients.append(self._client)
        return Mooncake(client or Borrowed(self._client), options, settings)

    def _healthy(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=5)
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()


class Process:
    """A client in a process of its own (see `process.py`), told what to do by a line."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("process.py")), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.hear() == "ready"

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def kill(self) -> None:
        self._process.kill()
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._process.communicate(timeout=10)


def put(store: Store, start: int, stop: int, size: int = PAGE_BYTES) -> list[Outcome]:
    return list(store.write(SPACE, [Write(page(n), [content(n, size)], 1) for n in range(start, stop)]))


def get(store: Store, number: int, size: int = PAGE_BYTES) -> Outcome:
    into = allocate(size)
    (outcome,) = store.read(SPACE, [Read(key(number), [into])])
    assert outcome is not Outcome.DONE or into == content(number, size)
    return outcome


def key_of(store: Mooncake, page_key: bytes) -> str:
    """What Mooncake calls a page's record."""
    return store._mooncake.key(name_of(store._root.generation, SPACE, page_key))
