"""`hpkv up`: check, prepare, start the replicas and the gateway, watch them, and end all that was started."""

import os
import string
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engine_adapters import memory
from engine_adapters.levels import check_folder
from engine_adapters.replica import LocalReplica

from . import environments, gateway, http, machine, notices, small_model, snippets
from .crew import Crew
from .environments import Environment
from .errors import ChildFailed
from .gateway import Upstream
from .interrupts import Interrupts
from .kinds import KINDS
from .options import Model, Options, find_model
from .processes import Child
from .progress import Progress
from .state import Folder

ENGINE_MEMORY = 2 << 30
"""Bytes of one replica besides its weights and its KV space. Measured with SmolLM2: 3.0 GB (proportional set
size) over its three processes, of which 1.07 are KV space and 0.27 weights."""

WATCH_INTERVAL = 0.3
GATEWAY = "gateway"


def prepare(options: Options, progress: Progress) -> dict[str, Environment]:
    """Make what replicas need: each kind's environment and, unless another is asked for, the small model."""
    made = {}
    for name in dict.fromkeys(options.kinds):
        log = options.home / "logs" / f"{name}-environment.log"
        with progress.step(f"{KINDS[name].title}'s environment") as step:
            made[name] = environments.ensure(KINDS[name].recipe, options.home, log, step.detail)
    if not options.model:
        with progress.step(small_model.NAME) as step:
            small_model.ensure(options.home, next(iter(made.values())), step.detail)
    return made


Prepare = Callable[[Options, Progress], Mapping[str, Environment]]


def up(options: Options, progress: Progress, prepare: Prepare = prepare) -> None:
    """Run a fleet until a signal ends it. `prepare` makes the engine's environment where it is needed.

    Raises:
        UpError, SettingsError: it could not start, or could not go on. Whatever was started has ended then.
        KeyboardInterrupt: the same, while it was starting.
    """
    folder = Folder(options.state)
    with Interrupts() as interrupts, folder.hold():
        fleet = Fleet(options, folder, progress, interrupts, prepare)
        try:
            fleet.start()
            fleet.watch()
        finally:
            fleet.end()


class Fleet:
    """The processes of one `hpkv up`."""

    def __init__(
        self,
        options: Options,
        folder: Folder,
        progress: Progress,
        interrupts: Interrupts,
        prepare: Prepare,
    ) -> None:
        self._options = options
        self._config = folder.path / "hpkv.yaml"
        self._progress = progress
        self._interrupts = interrupts
        self._prepare = prepare
        self._url = f"http://127.0.0.1:{options.port}"
        self._crew = Crew(folder, self._url)

    def start(self) -> None:
        """Bring all up and say how to use it."""
        options = self._options
        machine.require_port(options.port, "--port (PORT=)")
        if options.engines:
            model, *_ = [http.served_model(url) for url in options.engines]
            upstreams = self._found(options.engines)
        else:
            launches = self._launches(self._checked_model())
            model = launches[0].served_name
            self._start_replicas(launches)
            upstreams = [
                Upstream(it.name, it.url, it.events, it.replay, kind, it.agent)
                for it, kind in zip(launches, options.kinds, strict=True)
            ]
        self._start_gateway(upstreams)
        self._tell(upstreams)
        self._progress.say(
            f"\nThe gateway is at {self._url} (Ctrl-C, `make down` or `hpkv down` ends it).\n"
            f"\n{snippets.curl(self._url, model)}\n\n{snippets.sdk(self._url, model)}\n"
        )

    def _found(self, engines: Sequence[str]) -> list[Upstream]:
        return [
            Upstream(_name(i), url, *http.event_endpoints(url), http.kind(url))
            for i, url in enumerate(engines)
        ]

    def _tell(self, upstreams: Sequence[Upstream]) -> None:
        lines = [] if self._options.engines else [notices.tiers(self._options.tiers)]
        lines += notices.events(upstreams, self._config)
        lines += notices.prompts(http.known_prefixes(f"{self._url}/readyz"))
        for line in lines:
            self._progress.say(line)

    def _checked_model(self) -> Model:
        options = self._options
        for port in options.engine_ports:
            machine.require_port(port, "--engine-port (ENGINE_PORT=)")
        model = find_model(options)
        if options.tiers.ssd is not None:
            check_folder(options.tiers.ssd.path)
        host = options.tiers.host or 0
        memory.require_shared(options.kinds.count("vllm") * host)
        each = ENGINE_MEMORY + machine.GIB + model.weights + host
        machine.require_memory(options.replicas, each, memory.available())
        return model

    def _launches(self, model: Model) -> list[LocalReplica]:
        options = self._options
        cores = machine.core_shares(os.sched_getaffinity(0), options.replicas)
        return [
            KINDS[kind].replica(
                name=_name(i),
                model=model.source,
                served_name=model.name,
                port=options.engine_ports[i],
                sockets=self._crew.sockets,
                cores=cores[i],
                tiers=options.tiers,
                extra=options.engine_args,
            )
            for i, kind in enumerate(options.kinds)
        ]

    def _start_replicas(self, launches: Sequence[LocalReplica]) -> None:
        made = self._prepare(self._options, self._progress)
        names = ", ".join(one.name for one in launches)
        with self._progress.step(f"{launches[0].served_name} on replicas {names}") as step:
            ready: dict[Child, Callable[[], bool]] = {}
            for one, name in zip(launches, self._options.kinds, strict=True):
                kind = KINDS[name]
                command = kind.command(one, made[name].script(kind.program), os.environ)
                child = self._start(one.name, command, kind.environment(one, os.environ))
                ready[child] = partial(http.answers, f"{one.url}{kind.ready}")
            self._await(ready, step.detail)

    def _start_gateway(self, upstreams: Sequence[Upstream]) -> None:
        with self._progress.step(GATEWAY) as step:
            gateway.write_config(self._config, self._options.port, upstreams)
            child = self._start(GATEWAY, gateway.command(self._config), os.environ)
            self._await({child: partial(http.answers, f"{self._url}/readyz")}, step.detail)
        with self._progress.step("the gateway's tokenizer, compared with the replicas'") as step:
            self._await({child: partial(http.is_settled, f"{self._url}/readyz")}, step.detail)

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        with self._interrupts.held():
            return self._crew.start(name, command, environment)

    def _await(self, ready: Mapping[Child, Callable[[], bool]], detail: environments.Detail) -> None:
        """Return once each child is ready."""
        deadline = time.monotonic() + self._options.start_timeout
        waiting = list(ready)
        while waiting := [child for child in waiting if not ready[child]()]:
            detail(f"waiting for {', '.join(child.name for child in waiting)}")
            for child in ready:
                if not child.running:
                    raise ChildFailed(f"{child.name} ended while starting ({_exit(child)}).{_log(child)}")
            if time.monotonic() > deadline:
                raise ChildFailed(
                    f"{waiting[0].name} is not ready after {self._options.start_timeout:.0f} s "
                    f"(--start-timeout).{_log(waiting[0])}"
                )
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
        ended = [child for child in self._crew.children if not child.running and child.name not in lost]
        for child in ended:
            if child.name == GATEWAY:
                raise ChildFailed(f"the gateway ended ({_exit(child)}).{_log(child)}")
            lost.add(child.name)
            self._progress.say(
                f"Replica {child.name} ended ({_exit(child)}); the gateway goes on with the others. "
                f"To have it back: end all with Ctrl-C, then start again.{_log(child)}"
            )
        if ended and len(lost) == len(self._crew.children) - 1:
            raise ChildFailed("no replica is left; see above why")

    def end(self) -> None:
        """End all that was started, heedless of further signals."""
        with self._interrupts.held():
            self._crew.end()


def _name(i: int) -> str:
    return string.ascii_lowercase[i]


def _exit(child: Child) -> str:
    code = child.process.returncode
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _log(child: Child) -> str:
    return f" The end of its log, {child.log}:\n{child.log_end()}\n"
