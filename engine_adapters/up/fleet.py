"""`hpkv up`: check, prepare, start the replicas and the gateway, watch them, and end all that was started."""

import os
import string
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from engine_adapters.vllm import environment as vllm_environment
from engine_adapters.vllm import launch

from . import environments, gateway, http, machine, processes, small_model, snippets
from .environments import Environment
from .errors import ChildFailed
from .gateway import Upstream
from .interrupts import Interrupts
from .options import Model, Options, find_model
from .processes import Child
from .progress import Progress
from .state import GRACE, Folder, State, boot_id

ENGINE_MEMORY = 2 << 30
"""Bytes of one replica besides its weights and its KV space. Measured with SmolLM2: 3.0 GB (proportional set
size) over its three processes, of which 1.07 are KV space and 0.27 weights."""

WATCH_INTERVAL = 0.5


def up(options: Options, progress: Progress) -> None:
    """Run a fleet until a signal ends it.

    Raises:
        UpError: it could not start, or could not go on. Whatever was started has ended then.
        KeyboardInterrupt: the same, while it was starting.
    """
    folder = Folder(options.state)
    with Interrupts() as interrupts, folder.hold():
        fleet = Fleet(options, folder, progress, interrupts)
        try:
            fleet.start()
            fleet.watch()
        finally:
            fleet.end()


def prepare(options: Options, progress: Progress) -> Environment:
    """Make what replicas need: vLLM's environment and, unless another is asked for, the small model."""
    log = options.home / "logs" / "vllm-environment.log"
    with progress.step("vLLM's environment") as step:
        environment = environments.ensure(vllm_environment.CPU, options.home, log, step.detail)
    if not options.model:
        with progress.step(small_model.NAME) as step:
            small_model.ensure(options.home, environment, step.detail)
    return environment


class Fleet:
    """The processes of one `hpkv up`."""

    def __init__(self, options: Options, folder: Folder, progress: Progress, interrupts: Interrupts) -> None:
        self._options = options
        self._folder = folder
        self._progress = progress
        self._interrupts = interrupts
        self._sockets = Path(
            tempfile.mkdtemp(prefix="hpkv-")
        )  # short: a unix socket's path ends at 107 bytes
        self._url = f"http://127.0.0.1:{options.port}"
        self._state = State(boot_id(), processes.identify(os.getpid()), self._url, str(self._sockets))
        self._replicas: list[Child] = []
        self._gateway: list[Child] = []
        folder.write(self._state)

    def start(self) -> None:
        """Bring all up and say how to use it."""
        options = self._options
        machine.require_port(options.port, "--port (PORT=)")
        if options.engines:
            model, *_ = [http.served_model(url) for url in options.engines]
            upstreams = [Upstream(_name(i), url) for i, url in enumerate(options.engines)]
        else:
            launches = self._launches(self._checked_model())
            model = launches[0].served_name
            self._start_replicas(launches)
            upstreams = [Upstream(_name(i), it.url, it.events, it.replay) for i, it in enumerate(launches)]
        self._start_gateway(upstreams)
        self._progress.say(
            f"\nThe gateway is at {self._url} (Ctrl-C or `hpkv down` ends it).\n"
            f"\n{snippets.curl(self._url, model)}\n\n{snippets.sdk(self._url, model)}\n"
        )

    def _checked_model(self) -> Model:
        options = self._options
        for port in options.engine_ports:
            machine.require_port(port, "--engine-port (ENGINE_PORT=)")
        model = find_model(options)
        each = ENGINE_MEMORY + machine.GIB + model.weights
        machine.require_memory(options.replicas, each, machine.available_memory())
        return model

    def _launches(self, model: Model) -> list[launch.Launch]:
        cores = machine.core_shares(os.sched_getaffinity(0), self._options.replicas)
        return [
            launch.Launch(
                model=model.source,
                served_name=model.name,
                port=port,
                events=f"ipc://{self._sockets}/{_name(i)}.events",
                replay=f"ipc://{self._sockets}/{_name(i)}.replay",
                cores=cores[i],
                extra=self._options.engine_args,
            )
            for i, port in enumerate(self._options.engine_ports)
        ]

    def _start_replicas(self, launches: Sequence[launch.Launch]) -> None:
        environment = prepare(self._options, self._progress)
        with self._progress.step(f"{len(launches)} replicas of {launches[0].served_name}") as step:
            waited_for: dict[str, str] = {}
            for i, one in enumerate(launches):
                command = launch.command(one, environment.script("vllm"))
                child = self._start(_name(i), command, launch.environment(one, os.environ))
                self._replicas.append(child)
                waited_for[child.name] = f"{one.url}/health"
            self._await_ready(self._replicas, waited_for, step.detail)

    def _start_gateway(self, upstreams: Sequence[Upstream]) -> None:
        with self._progress.step("gateway") as step:
            config = self._folder.path / "hpkv.yaml"
            gateway.write_config(config, self._options.port, upstreams)
            child = self._start("gateway", gateway.command(config), os.environ)
            self._gateway.append(child)
            self._await_ready(self._gateway, {child.name: f"{self._url}/readyz"}, step.detail)

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        with self._interrupts.held():
            child = Child(name, command, environment, self._folder.log(name))
            self._state = msgspec.structs.replace(self._state, children=(*self._state.children, child.record))
            self._folder.write(self._state)
        return child

    def _await_ready(
        self, children: Sequence[Child], urls: Mapping[str, str], detail: environments.Detail
    ) -> None:
        deadline = time.monotonic() + self._options.start_timeout
        waiting = dict(urls)
        while waiting:
            for child in children:
                if not child.running:
                    raise ChildFailed(f"{child.name} ended while starting ({_exit(child)}).{_log(child)}")
            if time.monotonic() > deadline:
                slow = [child for child in children if child.name in waiting]
                raise ChildFailed(
                    f"{slow[0].name} is not ready after {self._options.start_timeout:.0f} s "
                    f"(--start-timeout).{_log(slow[0])}"
                )
            waiting = {name: url for name, url in waiting.items() if not http.answers(url)}
            detail(f"waiting for {', '.join(waiting)}")
            time.sleep(WATCH_INTERVAL)

    def watch(self) -> None:
        """Stay until a signal comes; tell of replicas that end.

        Raises:
            ChildFailed: the gateway ended, or the last replica did.
        """
        lost: set[str] = set()
        try:
            while True:
                self._look(lost)
                time.sleep(WATCH_INTERVAL)
        except KeyboardInterrupt:
            self._progress.say("\nEnding ...")

    def _look(self, lost: set[str]) -> None:
        for child in self._gateway:
            if not child.running:
                raise ChildFailed(f"the gateway ended ({_exit(child)}).{_log(child)}")
        for child in self._replicas:
            if not child.running and child.name not in lost:
                lost.add(child.name)
                self._progress.say(
                    f"Replica {child.name} ended ({_exit(child)}); the gateway goes on with the others. "
                    f"To have it back: end all with Ctrl-C, then start again.{_log(child)}"
                )
        if self._replicas and len(lost) == len(self._replicas):
            raise ChildFailed("no replica is left; see above why")

    def end(self) -> None:
        """End all that was started, heedless of further signals."""
        with self._interrupts.held():
            processes.end(self._state.children, GRACE)
            self._folder.clear(self._state)


def _name(i: int) -> str:
    return string.ascii_lowercase[i]


def _exit(child: Child) -> str:
    code = child.process.returncode
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _log(child: Child) -> str:
    return f" The end of its log, {child.log}:\n{child.log_end()}\n"
