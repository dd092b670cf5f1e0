"""One replica: whether it serves, what it serves, and the work that we gave it."""

import asyncio
import enum
import logging
from collections.abc import Callable
from types import TracebackType

from engine_adapters.base import Engine, Load, ModelCard
from gateway.fleet.agent import Agent
from gateway.fleet.speed import PrefillSpeed

log = logging.getLogger(__name__)


class State(enum.Enum):
    """Where a replica is in its life. Only `UP` gets requests."""

    JOINING = "joining"
    """Never answered yet."""
    UP = "up"
    DOWN = "down"
    LEAVING = "leaving"
    """No part of the fleet any more, but for the requests that it still answers."""


class Charge:
    """One request's share of a replica's work, from pick to end. Each step may be repeated."""

    __slots__ = ("_open", "_prefill_tokens", "_replica")

    def __init__(self, replica: "Replica", prefill_tokens: int) -> None:
        self._replica = replica
        self._prefill_tokens = prefill_tokens
        self._open = True
        replica.requests += 1
        replica.prefill_tokens += prefill_tokens

    def prefilled(self) -> None:
        """The first token is here: the prefill is done."""
        self._replica.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0

    def release(self) -> None:
        """The request ended, however it ended."""
        self.prefilled()
        if self._open:
            self._open = False
            self._replica.requests -= 1


class Replica:
    """One engine server behind the gateway.

    Args:
        name: unique in the fleet; shown to clients in `x-hpkv-replica`.
        rank: of data parallelism, where the server has several; each is a replica of its own.

    Attributes:
        changed: called when it rises or falls, or serves other models.
        agent: while one is followed; it may be out of reach.
    """

    def __init__(self, name: str, engine: Engine, rank: int = 0) -> None:
        self.name = name
        self.engine = engine
        self.rank = rank
        self.changed: Callable[[Replica], None] = _ignore
        self.agent: Agent | None = None
        self.state = State.JOINING
        self.models: dict[str, ModelCard] = {}
        self.requests = 0
        self.prefill_tokens = 0
        self.speed = PrefillSpeed()
        self.reason = "not probed yet"
        """Why it isn't up, for operators."""
        self.suspected = asyncio.Event()
        """Set by whoever saw it fail: the prober looks at once."""
        self._answered = False
        self._others = 0
        self._waiting: set[asyncio.Timeout] = set()

    def answered(self) -> None:
        """It began or ended an answer well: as good a sign of life as a probe's."""
        self._answered = True

    def take_answered(self) -> bool:
        """Whether it answered since this was last asked."""
        answered, self._answered = self._answered, False
        return answered

    @property
    def up(self) -> bool:
        """Whether it gets requests."""
        return self.state is State.UP

    @property
    def load(self) -> int:
        """Requests running or waiting there: ours as of now, other clients' as of the last sample."""
        return self.requests + self._others

    @property
    def gone(self) -> bool:
        """Whether it left and its last request is over, so that nobody needs to watch it."""
        return self.state is State.LEAVING and not self.requests

    def base(self, model: str) -> str:
        """The base model's name, of a LoRA adapter or of the model itself."""
        card = self.models.get(model)
        return card.parent if card is not None and card.parent in self.models else model

    def sample(self, load: Load) -> None:
        """Take the engine's own account of its load."""
        self._others = max(0, load.running + load.waiting - self.requests)

    def charge(self, prefill_tokens: int = 0) -> Charge:
        """Count a request against this replica until the charge is released."""
        return Charge(self, prefill_tokens)

    def rise(self, models: list[ModelCard]) -> None:
        """It answers: take it in, or take in what it serves now."""
        if self.state is State.LEAVING:
            return
        rose = not self.up
        known = self.models.keys()
        self.state = State.UP
        self.reason = ""
        self.models = {card.id: card for card in models}
        if rose:
            log.info("replica is up", extra={"replica": self.name, "models": sorted(self.models)})
        if rose or known != self.models.keys():
            self.changed(self)

    def fall(self, reason: str) -> None:
        """It doesn't serve: no new requests, and those without a first chunk move elsewhere now."""
        fell = self.state in (State.JOINING, State.UP)
        if self.state is not State.LEAVING:
            self.state = State.DOWN
            self.reason = reason
        if fell:
            log.warning("replica is down", extra={"replica": self.name, "reason": reason})
            self.changed(self)
        self._others = 0
        now = asyncio.get_running_loop().time()
        for waiting in self._waiting:
            # Once the timeout has fired it can't be moved, and needn't be.
            if not waiting.expired():
                waiting.reschedule(now)

    def leave(self, reason: str) -> None:
        """It is no part of the fleet any more: no new requests, and those in flight finish."""
        self.state = State.LEAVING
        self.reason = reason
        log.info("replica leaves", extra={"replica": self.name, "reason": reason})
        self.changed(self)
        # Another may have its name from now on, and what becomes of this one is not that one's.
        self.changed = _ignore
        self.suspected.set()

    def patience(self, seconds: float) -> "Patience":
        """A time limit for the wait for a first chunk, cut short when the replica falls."""
        return Patience(self._waiting, seconds)


def _ignore(replica: Replica) -> None:
    pass


class Patience:
    """`async with`: raises TimeoutError after `seconds`, or as soon as the replica falls."""

    __slots__ = ("_timeout", "_waiting")

    def __init__(self, waiting: set[asyncio.Timeout], seconds: float) -> None:
        self._waiting = waiting
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._waiting.add(self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.discard(self._timeout)
        await self._timeout.__aexit__(kind, error, trace)
