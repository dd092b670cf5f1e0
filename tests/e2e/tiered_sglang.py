"""A real SGLang server with tiers, and what tests ask of it."""

import contextlib
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx2
from rich.console import Console

from cache.prefix import prefix_keys, seed
from engine_adapters import wire
from engine_adapters.agent.client import AgentClient
from engine_adapters.flags import value_of
from engine_adapters.settings import Tiers
from engine_adapters.sglang import cpu
from engine_adapters.sglang.inside import exporter
from engine_adapters.up import fleet, options
from engine_adapters.up.crew import Crew
from engine_adapters.up.progress import Progress
from tests.e2e import agents
from tests.e2e.tiered import Metrics
from tests.engines import HOME, MODEL, Replica
from tests.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = 16
"""Tokens of a page."""
PAGE_BYTES = 46080 * PAGE
"""Of SmolLM2 in float32."""
THRESHOLD = 4 * PAGE
KV_TOKENS = 1280
ADMIN_KEY = "an-admin-key"
STORAGE = "/hicache/storage-backend"

T = TypeVar("T")


class Answer(NamedTuple):
    tokens: list[int]
    device: int
    host: int
    storage: int

    @property
    def cached(self) -> int:
        return self.device + self.host + self.storage


class Small(NamedTuple):
    """Tiers far smaller than an operator's: `host` is smaller than the GB that `hpkv launch` counts in."""

    host_ratio: float
    """Host memory, as a multiple of the device's."""
    ssd: int
    shared: int
    """Caps in bytes."""


class TieredSglang(Replica):
    """A server whose storage a test can disturb, by the file `faults`."""

    def __init__(
        self,
        name: str,
        folder: Path,
        crew: Crew,
        environment: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
        *,
        dtype: str = "float32",
        small: Small | None = None,
    ) -> None:
        self.faults = folder / f"{name}.faults"
        self.disturb()
        self.ssd = folder / f"{name}.ssd"
        self._small = small
        ssd_cap, shared_cap = (small.ssd, small.shared) if small else (1 << 30, None)
        tiers = {
            "host": "1GB",
            "ssd": {"path": str(self.ssd), "cap": ssd_cap, "free_floor": 0},
            "shared": {"url": str(folder / "shared"), "cap": shared_cap},
        }
        self._environment = {
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "XDG_CACHE_HOME": str(folder / "caches"),
            "SGLANG_HPKV_TOKEN_THRESHOLD": str(THRESHOLD),
            "HPKV_TEST_FAULTS": str(self.faults),
            **(environment or {}),
        }
        spec = cpu.CpuReplica(
            name=name,
            model=str(HOME / "models" / MODEL),
            served_name=MODEL,
            port=free_port(),
            sockets=crew.sockets,
            cores=(max(os.sched_getaffinity(0)),),
            tiers=Tiers.model_validate(tiers),
            extra=(f"--dtype={dtype}", f"--admin-api-key={ADMIN_KEY}", *flags),
            kv_tokens=KV_TOKENS,
        )
        made = fleet.prepare(options.Options(HOME, HOME / "up", engine="sglang"), Progress(Console()))
        self.agent = spec.agent
        one_each = httpx2.Limits(max_keepalive_connections=0)  # a restart breaks what is kept alive
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        self.client = httpx2.Client(base_url=spec.url, timeout=180, limits=one_each, headers=headers)
        super().__init__("sglang", spec, made["sglang"].script("sglang"), crew)

    def start(self) -> None:
        """Start it (again), with its faulty storage."""
        base = {**os.environ, **self._environment}
        changed = {'"engine_adapters.sglang.inside.storage"': '"tests.e2e.faulty_sglang"'}
        if self._small is not None:
            changed["--hicache-size=1"] = f"--hicache-ratio={self._small.host_ratio}"
        command = cpu.command(self._spec, self._executable, base)
        for ours, tests in changed.items():
            command = [part.replace(ours, tests) for part in command]
        self.extra_config = value_of(command, "--hicache-storage-backend-extra-config", "")
        self.command, self.environment = command, cpu.environment(self._spec, base)
        self._child = self._crew.start(self.name, command, self.environment)

    def end(self) -> None:
        """End it for good."""
        self.kill()
        self.client.close()

    def disturb(self, **faults: float) -> None:
        """Set all faults of its storage: see `tests.e2e.disturbed`."""
        draft = self.faults.with_suffix(".draft")
        draft.write_text(json.dumps(faults))
        draft.replace(self.faults)

    def complete(self, prompt: list[int], most: int = 8, **fields: Any) -> Answer:
        """Greedy completion of token ids."""
        sampling = {"temperature": 0, "max_new_tokens": most, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, **fields}
        answer = self.client.post("/generate", json=body)
        assert answer.status_code == 200, f"{answer.text}\n{self.log_end()}"
        told = answer.json()
        details = told["meta_info"].get("cached_tokens_details") or {}
        by_source = (details.get(source) or 0 for source in ("device", "host", "storage"))
        return Answer(told["output_ids"], *by_source)

    def abandon(self, prompt: list[int], seconds: float) -> None:
        """Ask for twenty tokens, and leave after so long."""
        sampling = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
        end = time.monotonic() + seconds
        with (
            contextlib.suppress(httpx2.TimeoutException),
            self.client.stream("POST", "/generate", json=body, timeout=seconds) as answer,
        ):
            for _ in answer.iter_lines():
                if time.monotonic() > end:
                    break

    def host_tokens(self) -> tuple[int, int]:
        """Tokens that SGLang's host tier holds, and its capacity: it tells when it computes."""
        self.complete([1, 2, 3], most=1)
        page = self.client.get("/metrics").text
        used, total = (
            re.search(rf"^sglang:hicache_host_{which}_tokens\{{.*\}} (\S+)", page, re.MULTILINE)
            for which in ("used", "total")
        )
        assert used is not None
        assert total is not None
        return int(float(used[1])), int(float(total[1]))

    def flush(self) -> None:
        """Empty `gpu` and `host`, once it is idle."""
        until(lambda: self.client.post("/flush_cache").status_code == 200)

    def ask(self, talk: Callable[[AgentClient], Awaitable[T]]) -> T:
        """One conversation with its agent."""
        return agents.ask(self.agent, talk)

    def stats(self) -> wire.Statistics:
        return self.ask(lambda client: client.stats())

    def loaded(self) -> tuple[int, int]:
        """Tokens that came from `ssd` and from `shared`."""
        tiers = self.stats().tiers
        return tiers["ssd"].loaded_tokens, tiers["shared"].loaded_tokens

    def metrics(self) -> Metrics:
        """What `/metrics` says; it is told of growth once a second."""
        return Metrics(self.client.get("/metrics").text)

    def settled(self, seconds: float = 60.0) -> Metrics:
        """Metrics, once they don't change any more."""
        before, deadline = self.metrics(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(3 * exporter.EVERY_S)
            now = self.metrics()
            if now.counted == before.counted:
                return now
            before = now
        raise AssertionError("the engine's metrics go on changing")

    def match(self, prompt: list[int], salt: str | None = None) -> list[tuple[str, int]]:
        return agents.spans(self.ask(lambda client: client.match(prompt, salt)))

    def wait_stored(self, *prompts: list[int], salt: str | None = None) -> None:
        """Wait until `ssd` and `shared` have all their pages."""
        keys = {key for prompt in prompts for key in names(prompt, salt)}
        for tier in ("ssd", "shared"):
            until(lambda tier=tier: keys <= agents.listed(self.agent, tier))  # type: ignore[misc]

    def detach(self) -> None:
        """Take the storage away, once it is idle."""
        until(lambda: self.client.delete(STORAGE).status_code == 200)

    def attach(self, policy: str) -> None:
        """Give it back, with one of SGLang's policies for requests that wait for it."""
        body = {
            "hicache_storage_backend": "dynamic",
            "hicache_storage_backend_extra_config_json": self.extra_config,
            "hicache_storage_prefetch_policy": policy,
        }
        answer = self.client.put(STORAGE, json=body)
        assert answer.status_code == 200, answer.text


def names(tokens: list[int], salt: str | None = None) -> set[int]:
    """The prefix keys of a prompt's pages."""
    return set(prefix_keys(tokens, PAGE, seed(None, salt)).tolist())
