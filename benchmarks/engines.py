"""Real engines for benchmarks: replicas of SmolLM2 on CPU, each with its share of the cores."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.servers import HOME, ServerFailed, free_port
from engine_adapters import memory
from engine_adapters.replica import LocalReplica
from engine_adapters.up import fleet, http, machine, options, small_model
from engine_adapters.up.crew import Crew
from engine_adapters.up.kinds import KINDS, Kind
from engine_adapters.up.processes import Child
from engine_adapters.up.progress import Progress
from engine_adapters.up.state import Folder

MODEL = small_model.NAME
ROOT = Path(__file__).parents[1]
READY_S = 300.0


@contextmanager
def running_replicas(
    count: int, engine: str = "vllm", *, shares: int | None = None, **wanted: Any
) -> Iterator[list[LocalReplica]]:
    """`count` replicas of this kind, ready; what they need is made where it is missing.

    Each computes on its share of the cores, one of `shares` (default: of `count`). `wanted` is what they have
    beside a name, a model, a port and cores: `tiers`, `extra` flags and so on.

    Raises:
        UpError: this machine cannot run them.
        ServerFailed: one did not come up.
    """
    each = fleet.ENGINE_MEMORY + machine.GIB + options.SMALL_MODEL_BYTES
    machine.require_memory(count, each, memory.available())
    kind = KINDS[engine]
    made = fleet.prepare(options.Options(HOME, HOME / "up", engine=engine), Progress(Console(stderr=True)))
    executable = made[engine].script(kind.program)
    folder = Folder(HOME / "bench-engines" / str(os.getpid()))
    folder.path.mkdir(parents=True)
    crew = Crew(folder, "")
    try:
        cores = machine.core_shares(os.sched_getaffinity(0), shares or count)[:count]
        specs = [_spec(kind, crew.sockets, "abcdefgh"[i], share, wanted) for i, share in enumerate(cores)]
        # Tiers run this very code inside the engine; VLLM_SERVER_DEV_MODE adds /reset_prefix_cache.
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_SERVER_DEV_MODE": "1"}
        children = [
            crew.start(
                spec.name,
                kind.command(spec, executable, environ),
                kind.environment(spec, environ),
            )
            for spec in specs
        ]
        for spec, child in zip(specs, children, strict=True):
            _await(f"{spec.url}{kind.ready}", child)
        yield specs
    finally:
        crew.end()
        shutil.rmtree(folder.path)


def _spec(
    kind: Kind, sockets: Path, name: str, cores: tuple[int, ...], wanted: dict[str, Any]
) -> LocalReplica:
    model = str(HOME / "models" / MODEL)
    return kind.replica(name, model, MODEL, free_port(), sockets, cores, **wanted)


def _await(ready: str, child: Child) -> None:
    deadline = time.monotonic() + READY_S
    while not http.answers(ready):
        if not child.running or time.monotonic() > deadline:
            exit_status = child.process.returncode
            raise ServerFailed(
                f"replica {child.name} did not come up (exit status {exit_status}). Its log ends:\n"
                f"{child.log_end()}"
            )
        time.sleep(0.2)
