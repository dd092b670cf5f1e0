"""A real vLLM server with tiers, and what tests ask of it."""

import contextlib
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from rich.console import Console

from engine_adapters import memory
from engine_adapters.settings import Tiers
from engine_adapters.up import fleet, machine, options
from engine_adapters.up.crew import Crew
from engine_adapters.up.progress import Progress
from engine_adapters.up.state import Folder
from engine_adapters.vllm import cpu, launch
from tests.engines import HOME, MODEL, Pool, Replica
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
BLOCK = 32
"""Tokens of a page."""
PAGE_BYTES = 46080 * BLOCK
"""Of SmolLM2 in float32."""
THRESHOLD = 3 * BLOCK
FLAGS = ("--dtype=float32", "--max-model-len=1024", "--num-gpu-blocks-override=64")
PATIENCE = {"HPKV_CACHE__LOOK_S": "5", "HPKV_CACHE__LOAD_S": "20"}
"""A core may stall for seconds, and a page that isn't found or read in time would be computed."""


class Answer(NamedTuple):
    text: str
    tokens: list[int]
    prompt: int
    cached: int


class Tiered(Replica):
    """A server whose connector a test can disturb, by the file `faults`."""

    def __init__(
        self,
        name: str,
        folder: Path,
        crew: Crew,
        tiers: Mapping[str, Any],
        flags: tuple[str, ...] = FLAGS,
        model: Path | None = None,
        environment: Mapping[str, str] | None = None,
        bind: str | None = None,
        page_tokens: int | None = None,
    ) -> None:
        """`bind` says which cores each rank takes, as vLLM reads it; else the last one is taken."""
        self.faults = folder / f"{name}.faults"
        self.disturb()
        self._page_tokens = page_tokens
        self.ssd = Path(tiers["ssd"]["path"]) if "ssd" in tiers else folder
        self._environment = {
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "XDG_CACHE_HOME": str(folder / "caches"),
            "VLLM_HPKV_TOKEN_THRESHOLD": str(THRESHOLD),
            "HPKV_TEST_FAULTS": str(self.faults),
            **PATIENCE,
            **({"VLLM_CPU_OMP_THREADS_BIND": bind} if bind else {}),
            **(environment or {}),
        }
        spec = cpu.CpuReplica(
            name=name,
            model=str(model or HOME / "models" / MODEL),
            served_name=MODEL,
            port=free_port(),
            sockets=crew.sockets,
            # threads that wait for each other suffer from neighbours
            cores=() if bind else (max(os.sched_getaffinity(0)),),
            tiers=Tiers.model_validate(tiers),
            extra=flags,
        )
        made = fleet.prepare(options.Options(HOME, HOME / "up"), Progress(Console()))
        self.agent = spec.agent
        one_each = httpx2.Limits(max_keepalive_connections=0)  # a restart breaks what is kept alive
        self.client = httpx2.Client(base_url=spec.url, timeout=180, limits=one_each)
        super().__init__("vllm", spec, made["vllm"].script("vllm"), crew)

    def start(self) -> None:
        """Start it (again), with its faulty connector."""
        base = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", **self._environment}
        command = [
            part.replace('"engine_adapters.vllm.inside.connector"', '"tests.e2e.faulty"')
            for part in launch.command(self._launch(), self._executable, cpu.environment(self._spec, base))
        ]
        self._child = self._crew.start(self.name, command, cpu.environment(self._spec, base))

    def _launch(self) -> launch.Launch:
        return replace(self._spec.launch(), page_tokens=self._page_tokens)

    def end(self) -> None:
        """End it for good."""
        self.kill()
        self.client.close()

    def disturb(self, **faults: float) -> None:
        """Set all faults of its disk and its costs: see `tests.e2e.disturbed`."""
        draft = self.faults.with_suffix(".draft")
        draft.write_text(json.dumps(faults))
        draft.replace(self.faults)

    def complete(self, prompt: list[int], most: int = 8, **fields: Any) -> Answer:
        """Greedy completion of token ids."""
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": most,
            "temperature": 0,
            "return_token_ids": True,
            "ignore_eos": True,
            **fields,
        }
        answer = self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, f"{answer.text}\n{self.log_end()}"
        told, usage = answer.json()["choices"][0], answer.json()["usage"]
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        return Answer(told["text"], told["token_ids"], usage["prompt_tokens"], cached)

    def forget(self, *, host: bool = False) -> None:
        """Empty `gpu`, and `host` too if asked for, once no request runs."""
        until(lambda: self.reset(host=host))

    def reset(self, *, host: bool = False) -> bool:
        """The same now; False if requests run: then `gpu` stays as it is."""
        query = {"reset_external": "true"} if host else {}
        answer = self.client.post("/reset_prefix_cache", params=query).raise_for_status()
        done: bool = answer.json()["success"]
        return done

    def metrics(self) -> "Metrics":
        """What `/metrics` says, once a step has been made that tells all of it."""
        self.complete([1], most=2)
        return Metrics(self.client.get("/metrics").text)

    def settled(self, seconds: float = 60.0) -> "Metrics":
        """Metrics, once they don't change any more and no page is being written."""
        before, deadline = self.metrics(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.2)
            now = self.metrics()
            if now.counted == before.counted and not now.writing:
                return now
            before = now
        raise AssertionError("the engine's metrics go on changing")


class Metrics:
    """Our metrics at one moment, summed over labels not asked for."""

    def __init__(self, page: str) -> None:
        self._values: list[tuple[str, dict[str, str], float]] = []
        for line in page.splitlines():
            found = re.fullmatch(r"(hpkv_\w+)\{(.*)\} (\S+)", line)
            if found:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
                self._values.append((found[1].removesuffix("_total"), labels, float(found[3])))

    @property
    def counted(self) -> list[float]:
        tokens = ("hpkv_loaded_tokens", "hpkv_stored_tokens", "hpkv_read_tokens")
        return [self.get(name) for name in (*tokens, "hpkv_open_leases", "hpkv_held_pages")]

    def get(self, name: str, **labels: str) -> float:
        return sum(
            value for found, has, value in self._values if found == name and labels.items() <= has.items()
        )

    @property
    def writing(self) -> bool:
        """Whether pages are held and no lease is there to hold them; where leases are, it can't be told."""
        return self.get("hpkv_held_pages") > 0 and not self.get("hpkv_open_leases")

    def not_stored(self, tier: str) -> float:
        """Pages that a tier didn't take."""
        return sum(self.get(f"hpkv_{how}_pages", tier=tier) for how in ("dropped", "failed"))

    @property
    def held(self) -> tuple[float, float, float]:
        """Open tickets, leases, held pages."""
        return (
            self.get("hpkv_open_tickets"),
            self.get("hpkv_open_leases"),
            self.get("hpkv_held_pages"),
        )

    def loaded(self) -> tuple[float, float, float]:
        """Tokens that requests took from `host`, `ssd` and `shared`."""
        return (
            self.get("hpkv_loaded_tokens", tier="host"),
            self.get("hpkv_loaded_tokens", tier="ssd"),
            self.get("hpkv_loaded_tokens", tier="shared"),
        )


@contextlib.contextmanager
def crew_of(name: str, pool: Pool) -> Iterator[tuple[Crew, Path]]:
    """The processes of one test module, and a folder for what they store; both end with it."""
    folder = Folder(HOME / "test-engines" / f"{name}-{os.getpid()}")
    folder.path.mkdir(parents=True)
    pool.end()
    machine.require_memory(1, fleet.ENGINE_MEMORY + 2 * machine.GIB, memory.available())
    crew = Crew(folder, "")
    try:
        yield crew, folder.path
    finally:
        crew.end()
        shutil.rmtree(folder.path)


def prompt(seed: int, tokens: int) -> list[int]:
    """Random words; two seeds share no page."""
    return [
        random.Random(seed).randrange(1000, 40000),
        *random.Random(seed + 1).choices(range(1000, 40000), k=tokens - 1),
    ]


def changed_rows(before: bytes, after: bytes) -> list[int]:
    """Slots of an ssd folder whose entries in its table are new."""
    rows = range(4096, len(after), 128)
    return [(at - 4096) // 128 for at in rows if before[at : at + 128] != after[at : at + 128]]


def flip(pages: Path, slot: int, page_bytes: int) -> None:
    """Change one bit of a page on disk."""
    with pages.open("r+b") as file:
        file.seek(slot * (4096 + page_bytes) + 4096 + 1000)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())
