"""The fake engine's time: a bounded batch, prefills one after the other, one token an interval."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fakes.prefix_cache import PrefixCache


@dataclass
class Speed:
    """Settable at any time; zero or infinity cost no time."""

    prefill_tokens_per_s: float = float("inf")
    decode_interval_s: float = 0.0


@dataclass
class Job:
    """One request inside the engine."""

    prompt: Sequence[int]
    output: Sequence[int]
    salt: str = ""
    lora: str = ""
    cached_tokens: int = 0


class Scheduler:
    """Runs at most `max_running` jobs; further ones wait in the order of their arrival."""

    def __init__(
        self, cache: PrefixCache, speed: Speed, max_running: int, on_step: Callable[[], None]
    ) -> None:
        self.running = 0
        self.waiting = 0
        self.prefilled_tokens = 0
        self._cache = cache
        self._speed = speed
        self._slots = asyncio.Semaphore(max_running)
        self._prefill = asyncio.Lock()
        self._on_step = on_step

    async def run(self, job: Job, emit: Callable[[int], None]) -> None:
        """Call `emit` with the position of each output token when it is due. Cancelling aborts the job."""
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            await self._prefill_job(job)
            for position in range(len(job.output)):
                await asyncio.sleep(self._speed.decode_interval_s)
                emit(position)
            self._cache.store([*job.prompt, *job.output], job.salt, job.lora)
            self._on_step()
        finally:
            self.running -= 1
            self._slots.release()

    async def _prefill_job(self, job: Job) -> None:
        async with self._prefill:
            job.cached_tokens = self._cache.match(job.prompt, job.salt, job.lora)
            rest = len(job.prompt) - job.cached_tokens
            await asyncio.sleep(rest / self._speed.prefill_tokens_per_s)
            self.prefilled_tokens += rest
            self._cache.store(job.prompt, job.salt, job.lora)
            self._on_step()
