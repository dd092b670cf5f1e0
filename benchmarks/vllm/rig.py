"""Engines to compare, and what is measured on them: time to the first token, tokens a second."""

import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console

from benchmarks.servers import HOME, ServerFailed, free_port
from engine_adapters.settings import Tiers
from engine_adapters.up import fleet, http, options, processes, small_model
from engine_adapters.up.crew import Crew
from engine_adapters.up.interrupts import Interrupts
from engine_adapters.up.progress import Progress
from engine_adapters.up.state import Folder, down
from engine_adapters.vllm import cpu

MODEL = small_model.NAME
ROOT = Path(__file__).parents[2]
READY_S = 300.0
BLOCK = 64
PROMPT_TOKENS = 4000
HOST = 2 << 30
FLAGS = ("--max-model-len=8192", "--num-gpu-blocks-override=160")


class Engine:
    """One vLLM server on both cores, and its client."""

    def __init__(
        self, crew: Crew, folder: Path, name: str, tiers: dict[str, Any], flags: Sequence[str] = ()
    ) -> None:
        self.name = name
        spec = cpu.CpuReplica(
            name=name,
            model=str(HOME / "models" / MODEL),
            served_name=MODEL,
            port=free_port(),
            sockets=crew.sockets,
            cores=tuple(sorted(os.sched_getaffinity(0))),
            block_tokens=BLOCK,
            tiers=Tiers.model_validate(tiers),
            extra=FLAGS,
        )
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "XDG_CACHE_HOME": str(folder / "caches"),
            "VLLM_SERVER_DEV_MODE": "1",
        }
        made = fleet.prepare(options.Options(HOME, HOME / "up"), Progress(Console(stderr=True)))
        command = [*cpu.command(spec, made["vllm"].script("vllm"), environment), *flags]
        self._child = crew.start(name, command, cpu.environment(spec, environment))
        self._client = httpx2.Client(base_url=spec.url, timeout=300)
        self._await(f"{spec.url}/health")

    def ttft(self, prompt: list[int], cached: int | None = None) -> float:
        """Seconds to the first token; `cached` tokens must have been (all of its pages: None)."""
        wanted = len(prompt) // BLOCK * BLOCK if cached is None else cached
        begun = time.perf_counter()
        with self._stream(prompt, 1) as lines:
            next(lines)
            seconds = time.perf_counter() - begun
            usage = [json.loads(line[6:])["usage"] for line in lines if '"usage":{' in line]
        found = (usage[-1]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        if found != wanted:
            raise ServerFailed(f"{self.name}: {found} tokens were cached instead of {wanted}")
        return seconds

    def forget(self, host: bool = False) -> None:
        """Empty `gpu`, and `host` too if asked for."""
        query = {"reset_external": "true"} if host else {}
        self._client.post("/reset_prefix_cache", params=query).raise_for_status()

    def settle(self) -> None:
        """Wait until all that was stored is written down."""
        time.sleep(0.5)
        before = None
        while (now := self._written()) != before:
            before = now
            time.sleep(0.5)

    def decode_rate(self, prompts: Iterator[list[int]], tokens: int) -> float:
        """Tokens/s of one stream beside another client's prompts, each answered with one token."""
        over = threading.Event()
        with ThreadPoolExecutor(1) as client, self._stream(next(prompts)[:BLOCK], tokens) as lines:
            next(lines)
            beside = client.submit(self._ask_until, over, prompts)
            begun = time.perf_counter()
            try:
                for _ in lines:
                    pass
                seconds = time.perf_counter() - begun
            finally:
                over.set()
            beside.result()
        return (tokens - 1) / seconds

    def _ask_until(self, over: threading.Event, prompts: Iterator[list[int]]) -> None:
        with httpx2.Client(base_url=self._client.base_url, timeout=300) as other:
            while not over.is_set():
                body = {"model": MODEL, "prompt": next(prompts), "max_tokens": 1}
                answer = other.post("/v1/completions", json=body)
                if answer.is_error:
                    raise ServerFailed(f"{self.name}: {answer.text}. Its log ends:\n{self._child.log_end()}")

    def end(self) -> None:
        """End it."""
        self._client.close()
        processes.end([self._child.record], grace=5)
        self._child.process.wait()

    def _written(self) -> float:
        self._client.post("/v1/completions", json={"model": MODEL, "prompt": [1], "max_tokens": 2})
        page = self._client.get("/metrics").text
        lines = [line for line in page.splitlines() if line.startswith("hpkv_stored_bytes_total")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    @contextlib.contextmanager
    def _stream(self, prompt: list[int], tokens: int) -> Iterator[Iterator[str]]:
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with self._client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            yield (line for line in answer.iter_lines() if line.startswith("data: {"))

    def _await(self, url: str) -> None:
        deadline = time.monotonic() + READY_S
        while not http.answers(url):
            if not self._child.running or time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} did not come up. Its log ends:\n{self._child.log_end()}")
            time.sleep(0.2)


@contextlib.contextmanager
def place(folder: Path) -> Iterator[Crew]:
    """Where engines are started; ends them, also at SIGTERM, and removes what they stored."""
    where = Folder(folder)
    if where.recorded():  # a run was killed
        down(where)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    crew = Crew(where, "")
    with Interrupts() as interrupts:
        try:
            yield crew
        finally:
            with interrupts.held():
                crew.end()
                shutil.rmtree(folder)


def prompts(seed: int, tokens: int = PROMPT_TOKENS) -> Iterator[list[int]]:
    """Prompts of random tokens, none of which shares a page with another."""
    chance = random.Random(seed)
    while True:
        yield chance.choices(range(1000, 40000), k=tokens)
