"""The bench: mock backends on core 0, and the servers under test on core 1."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.peers import PeerMissing, peer
from benchmarks.process import core_busy_seconds
from benchmarks.report import Report
from benchmarks.servers import HOME, Server, ServerFailed, free_port
from engine_adapters.up import fleet, options, small_model
from engine_adapters.up.progress import Progress

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
LOAD_CORE, TEST_CORE = 0, 1
BACKENDS = 2


class Rig:
    """What runs: a backend to talk to directly, and the contenders in the order that was asked for.

    `missing` says why contenders that should be here are not.
    """

    def __init__(self, backend: Server, contenders: list[Server], missing: list[str]) -> None:
        self.backend = backend
        self.contenders = contenders
        self.missing = missing
        self._started, self._foreign = time.monotonic(), self._foreign_seconds()

    def tell(self, report: Report, scenario: str) -> None:
        """Note what the reader of this scenario's figures must know."""
        share = (self._foreign_seconds() - self._foreign) / (time.monotonic() - self._started)
        report.note(f"{scenario}: other processes used {share:.0%} of the core of the servers under test.")
        for reason in self.missing:
            report.note(f"{scenario}: {reason}")

    def _foreign_seconds(self) -> float:
        """Time of the tested servers' core, since boot, that went to others."""
        return core_busy_seconds(TEST_CORE) - sum(s.process.cpu_seconds() for s in self.contenders)


Maker = Callable[[Sequence[str]], Server]
"""Makes a contender for these backends."""


@contextmanager
def running_rig(*makers: Maker) -> Iterator[Rig]:
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
        contenders, missing = [], []
        for make in makers:
            try:
                contenders.append(stack.enter_context(make([backend.url for backend in backends])))
            except PeerMissing as error:
                missing.append(str(error))
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
    return serve("gateway", _upstreams(urls), TEST_CORE, routing={"policy": "round_robin"})


def tokenizing_gateway(urls: Sequence[str]) -> Server:
    """`hpkv serve` with its default policy, told where the model's tokenizer is."""
    models = {"mock": {"tokenizer": str(tokenizer_folder())}}
    return serve("tokenizing", _upstreams(urls), TEST_CORE, models=models)


def serve(name: str, replicas: Sequence[Mapping[str, str]], core: int | None, **sections: Any) -> Server:
    """`hpkv serve` before these replicas, with these sections of settings besides."""
    port = free_port()
    config = HOME / "build" / f"bench-{name}.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    settings = {"listen": {"host": "127.0.0.1", "port": port}, "replicas": list(replicas), **sections}
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [str(Path(sys.executable).parent / "hpkv"), "serve", "--config", str(config)]
    return Server(name, command, port, core=core, ready="/readyz", cwd=ROOT)


def await_prefixes(server: Server, timeout_s: float = 60) -> str:
    """Wait until the gateway knows prompts, and return how far it is sure of them.

    Raises ServerFailed if it does not come to that.
    """
    deadline, verdict = time.monotonic() + timeout_s, ""
    while time.monotonic() < deadline:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=5)
        connection.request("GET", "/readyz")
        models = json.load(connection.getresponse())["models"]
        connection.close()
        verdict = models[0]["prefixes"] if models else "no model is known"
        if verdict in ("unproven", "agrees"):
            return str(verdict)
        time.sleep(0.2)
    raise ServerFailed(f"{server.name} does not know prompts: {verdict}")


def tokenizer_folder() -> Path:
    """The small model's folder, made with vLLM's environment where it is missing."""
    folder = HOME / "models" / small_model.NAME
    if not folder.is_dir():
        fleet.prepare(options.Options(HOME, HOME / "up"), Progress(Console(stderr=True)))
    return folder


def _upstreams(urls: Sequence[str]) -> list[dict[str, str]]:
    return [{"name": f"r{i}", "url": url, "engine": "vllm"} for i, url in enumerate(urls)]


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
