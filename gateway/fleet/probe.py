"""Watching one replica: active probes, woken early by passive signals.

A refused connection or an error answer takes a replica out at once: something answered, and it said no. Silence
takes `failures` probes, since a busy machine is silent too. One good answer brings it back.
"""

import asyncio
import logging
from collections.abc import Callable

from engine_adapters.errors import EngineError, EngineTimeout
from gateway.fleet.replica import Replica, State
from gateway.settings import ProbeSettings

log = logging.getLogger("hpkv.fleet")

MODELS_EVERY = 10
"""Probes between two looks at a healthy replica's list of models: LoRA adapters come and go."""


class Prober:
    """Keeps one replica's state true until cancelled.

    Args:
        changed: called after each change of the replica's state.
    """

    def __init__(self, replica: Replica, settings: ProbeSettings, changed: Callable[[Replica], None]) -> None:
        self._replica = replica
        self._settings = settings
        self._changed = changed
        self._silent = 0
        self._count = 0

    async def run(self) -> None:
        """Probe for ever; cancel to end."""
        while True:
            self._replica.suspected.clear()
            await self.probe()
            try:
                async with asyncio.timeout(self._settings.interval_s):
                    await self._replica.suspected.wait()
            except TimeoutError:
                continue
            # Suspicions come in bursts, one for each broken request.
            await asyncio.sleep(self._settings.interval_s / 10)

    async def probe(self) -> None:
        """Look once and draw the consequences."""
        try:
            await self._look()
            self._silent = 0
        except EngineTimeout as error:
            self._silent += 1
            if self._silent >= self._settings.failures or not self._replica.up:
                self._fall(str(error))
        except EngineError as error:
            self._fall(str(error))

    async def _look(self) -> None:
        replica, engine, timeout_s = self._replica, self._replica.engine, self._settings.timeout_s
        await engine.check_health(timeout_s=timeout_s)
        self._count += 1
        if not replica.up or self._count % MODELS_EVERY == 0:
            models = await engine.models(timeout_s=timeout_s)
            rose = not replica.up
            replica.rise(models)
            if rose:
                log.info(
                    "replica is up", extra={"replica": replica.name, "models": sorted(replica.models)}
                )
                self._changed(replica)
        replica.sample(await engine.load(timeout_s=timeout_s))

    def _fall(self, reason: str) -> None:
        replica = self._replica
        fell = replica.state is not State.DOWN
        replica.fall(reason)
        if fell:
            log.warning("replica is down", extra={"replica": replica.name, "reason": reason})
            self._changed(replica)
