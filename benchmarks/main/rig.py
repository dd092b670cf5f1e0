"""The bench: mock backends on core 0, and the servers under test on core 1."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import PeerMissing, peer
from benchmarks.process import core_busy_seconds
from benchmarks.servers import HOME, Server, ServerFailed, free_port

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
LOAD_CORE, TEST_CORE = 0, 1
BACKENDS = 2


class Rig(NamedTuple):
    """What runs: a backend to talk to directly, and the contenders, the gateway first."""

    backend: Server
    contenders: list[Server]
    missing: list[str]
    """Why contenders that should be here are not."""

    def foreign_seconds(self) -> float:
        """Time of the tested servers' core, since boot, that went to others."""
        return core_busy_seconds(TEST_CORE) - sum(s.process.cpu_seconds() for s in self.contenders)


@contextmanager
def running_rig() -> Iterator[Rig]:
    """Start everything, keep this process and its children on the load's core, and end everything."""
    if len(os.sched_getaffinity(0)) < 2:
        raise ServerFailed("two cores are needed: one for the server under test, one for the load")
    with ExitStack() as stack:
        mock = build_mock()
        ports = [free_port() for _ in range(BACKENDS)]
        backends = [
            stack.enter_context(Server(f"mock-{port}", [str(mock), str(port)], port, core=LOAD_CORE))
            for port in ports
        ]
        urls = [backend.url for backend in backends]
        contenders, missing = [gateway(urls), passthrough(urls)], []
        try:
            contenders.append(vllm_router(urls))
        except PeerMissing as error:
            missing.append(str(error))
        for contender in contenders:
            stack.enter_context(contender)
        cores = os.sched_getaffinity(0)
        stack.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {LOAD_CORE})
        yield Rig(backends[0], contenders, missing)


def build_mock() -> Path:
    """The mock backend, compiled."""
    binary = HOME / "build" / "mock"
    binary.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O2", "-o", str(binary), str(FOLDER / "mock.c")], check=True)
    return binary


def gateway(urls: Sequence[str]) -> Server:
    """`hpkv serve` with round robin, as it comes."""
    port = free_port()
    config = HOME / "build" / "bench-main.yaml"
    settings = {
        "listen": {"host": "127.0.0.1", "port": port},
        "routing": {"policy": "round_robin"},
        "replicas": [{"name": f"r{i}", "url": url, "engine": "vllm"} for i, url in enumerate(urls)],
    }
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [str(Path(sys.executable).parent / "hpkv"), "serve", "--config", str(config)]
    return Server("gateway", command, port, core=TEST_CORE, ready="/readyz", cwd=ROOT)


def passthrough(urls: Sequence[str]) -> Server:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.main.passthrough", str(port), *urls]
    return Server("passthrough", command, port, core=TEST_CORE, cwd=ROOT)


def vllm_router(urls: Sequence[str]) -> Server:
    port = free_port()
    command = [str(peer("vllm-router") / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", *urls, "--policy", "round_robin", "--log-level", "error"]
    command += ["--prometheus-port", str(free_port())]
    return Server("vllm-router", command, port, core=TEST_CORE)
