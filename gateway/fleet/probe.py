"""Watching one replica: active probes, woken early by passive signals.

A refused connection or an error answer takes a replica out at once: something answered, and it said no.
Silence takes `failures` probes, since a busy machine is silent too. One good answer brings it back. Whoever
answered a request since the last probe is well, unless something made it suspect, and isn't asked.
"""

import asyncio
import logging

from engine_adapters.errors import EngineError, EngineExhausted, EngineTimeout
from gateway.fleet.replica import Replica
from gateway.settings import ProbeSettings

log = logging.getLogger(__name__)

MODELS_EVERY = 10
"""Probes between two looks at a healthy replica's list of models: LoRA adapters come and go."""

LOAD_EVERY = 5
"""Probes between two looks at its load. Our own share is known without looking, and an engine's metrics page
is long: at each probe, it was most of what an idle gateway did."""


class Prober:
    """Keeps one replica's state true until cancelled, or until it has left."""

    def __init__(self, replica: Replica, settings: ProbeSettings) -> None:
        self._replica = replica
        self._settings = settings
        self._silent = 0
        self._count = 0

    @property
    def name(self) -> str:
        """The replica's."""
        return self._replica.name

    async def run(self) -> None:
        """Probe until it is gone; cancel to end before. One that leaves is watched for its last requests."""
        while not self._replica.gone:
            trust = not self._replica.suspected.is_set()
            self._replica.suspected.clear()
            await self.probe(trust_answers=trust)
            try:
                async with asyncio.timeout(self._settings.interval_s):
                    await self._replica.suspected.wait()
            except TimeoutError:
                continue
            # Suspicions come in bursts, one for each broken request.
            await asyncio.sleep(self._settings.interval_s / 10)

    async def probe(self, *, trust_answers: bool = False) -> None:
        """Look once and draw the consequences.

        Args:
            trust_answers: an answer to a client since the last look stands for a healthy one.
        """
        try:
            await self._look(trust_answers)
            self._silent = 0
        except EngineExhausted as error:
            log.warning("can't probe", extra={"replica": self._replica.name, "reason": str(error)})
        except EngineTimeout as error:
            self._silent += 1
            if self._silent >= self._settings.failures or not self._replica.up:
                self._replica.fall(str(error))
        except EngineError as error:
            self._replica.fall(str(error))
        except Exception as error:
            # A prober that died would leave its replica up for ever.
            log.exception("probing failed", extra={"replica": self._replica.name})
            self._replica.fall(f"probing failed: {type(error).__name__}")

    async def _look(self, trust_answers: bool) -> None:
        replica, engine, timeout_s = self._replica, self._replica.engine, self._settings.timeout_s
        if not (replica.take_answered() and trust_answers and replica.up):
            await engine.check_health(timeout_s=timeout_s)
        self._count += 1
        if not replica.up or self._count % MODELS_EVERY == 0:
            replica.rise(await engine.models(timeout_s=timeout_s))
        if self._count % LOAD_EVERY == 1:
            await self._sample(timeout_s)

    async def _sample(self, timeout_s: float) -> None:
        # The load is advice: a replica whose metrics can't be read serves as well as any.
        try:
            self._replica.sample(await self._replica.engine.load(timeout_s=timeout_s))
        except EngineError as error:
            log.info("no load", extra={"replica": self._replica.name, "reason": str(error)})
