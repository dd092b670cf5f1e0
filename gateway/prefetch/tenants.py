"""Prefetches and pins that tenants ask for: on which replica, within which bounds, and what came of them."""

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from cache.prefix import Tokens
from engine_adapters.errors import AgentRefused, EngineError
from engine_adapters.events import Tier
from engine_adapters.wire import Order
from gateway.dispatch import Dispatch, Dispatcher
from gateway.errors import Conflict, InvalidRequest, NoAgent, NotFound, Overloaded
from gateway.fleet import Agent, Replica
from gateway.prefetch.holdings import Holdings
from gateway.prefetch.metrics import by_tier
from gateway.prefetch.requests import computed
from gateway.routing import Candidate
from gateway.settings import TenantSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt that is to be kept.

    Attributes:
        owner: who asks, as `Access.check_api` tells it.
        salt: names the tenant's pages, as in a request; None for those without.
        replica: where; "" where it is best.
    """

    owner: str
    dispatch: Dispatch
    salt: str | None
    seconds: float
    replica: str = ""


class Prefetched(NamedTuple):
    """What a prefetch found, in tokens: by tier, being loaded, and in none."""

    replica: str
    tokens: int
    found: dict[str, int]
    loading: int
    missing: int


class Pinned(NamedTuple):
    """Leading tokens that are kept, for so many seconds from now."""

    id: str
    replica: str
    tokens: int
    pinned: int
    seconds: float


class _Where(NamedTuple):
    """A prompt at a replica, under the names by which its agent knows it."""

    replica: Replica
    tokens: Tokens
    salt: str | None
    lora: str | None

    @property
    def name(self) -> str:
        """The same for the same prompt at the same replica."""
        told = repr((self.replica.name, self.salt, self.lora)).encode("utf-8", "surrogatepass")
        key = hashlib.sha256(told).digest()
        return hashlib.blake2b(self.tokens.tobytes(), key=key, digest_size=16).hexdigest()

    def agent(self) -> Agent:
        """The replica's, if it answers. Raises NoAgent."""
        agent = self.replica.agent
        if agent is None or not agent.alive:
            raise NoAgent(f"The agent of replica '{self.replica.name}' doesn't answer any more.")
        return agent


class Tenants:
    """Does what tenants ask of the replicas' agents."""

    def __init__(
        self, dispatcher: Dispatcher, settings: TenantSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._dispatcher = dispatcher
        self._prefetches: Holdings[None] = Holdings("prefetches", settings.prefetches, settings.tokens, clock)
        self._pins: Holdings[_Where] = Holdings("pins", settings.pins, settings.tokens, clock)

    async def prefetch(self, asked: Asked) -> Prefetched:
        """Bring a prompt up where a request for it would go.

        Raises:
            NoAgent, NotFound, RateLimited: nobody can; no such replica; the key has no room.
            InvalidRequest, Conflict, Overloaded: the agent won't, or can't now.
        """
        chosen = self._dispatcher.decide(asked.dispatch, _able(asked)).chosen
        where = _where(asked, chosen)
        agent, tokens = where.agent(), len(where.tokens)
        start = computed(chosen, agent)
        start -= start % agent.page_tokens
        with self._prefetches.asking(asked.owner, where.name, None, tokens, asked.seconds):
            order = await _answer(
                agent.client.prefetch(
                    where.tokens, where.salt, where.lora, seconds=asked.seconds, computed=start
                )
            )
        if not order.ticket:
            self._prefetches.drop(asked.owner, where.name)
        end = order.spans[-1].end if order.spans else start
        if order.complete and chosen.held[Tier.SHARED] and end < sum(chosen.held):
            self._dispatcher.absent(asked.dispatch.context, chosen.replica, end)
        own = {"gpu": min(chosen.gpu, start), "host": max(0, start - chosen.gpu)}
        return _prefetched(chosen.replica.name, tokens, order, own, end)

    async def pin(self, asked: Asked) -> Pinned:
        """Keep what of a prompt is in `host` and `ssd`, on the replica that has most of it.

        Raises as `prefetch`.
        """
        decision = self._dispatcher.decide(asked.dispatch, _able(asked))
        chosen = max(decision.candidates, key=lambda c: (sum(c.held[: Tier.SHARED]), c is decision.chosen))
        where = _where(asked, chosen)
        agent, tokens = where.agent(), len(where.tokens)
        # The agent has one pin a prompt, and another key's may have longer to go.
        seconds = max(asked.seconds, self._pins.left_s(where.name, asked.owner))
        with self._pins.asking(asked.owner, where.name, where, tokens, asked.seconds):
            kept = await _answer(agent.client.pin(where.tokens, where.salt, where.lora, seconds=seconds))
        seconds = min(kept.seconds, asked.seconds)
        if kept.tokens:
            self._pins.hold(asked.owner, where.name, where, kept.tokens, seconds)
        else:
            self._pins.drop(asked.owner, where.name)
        return Pinned(f"pin_{where.name}", where.replica.name, tokens, kept.tokens, seconds)

    async def unpin_prompt(self, asked: Asked) -> list[str]:
        """End the key's pins of a prompt, on all replicas or on one; returns their ids.

        Raises:
            NotFound: it has none.
        """
        candidates = self._dispatcher.decide(asked.dispatch, _able(asked)).candidates
        names = [_where(asked, candidate).name for candidate in candidates]
        ended = [f"pin_{name}" for name in names if await self._unpin(asked.owner, name)]
        if not ended:
            raise NotFound("You have no pin of this prompt.")
        return ended

    async def unpin(self, owner: str, pin: str) -> None:
        """End a pin. If its agent doesn't answer, it stays as it is.

        Raises:
            NotFound: it is none of this key's, or its time was over.
            NoAgent, Overloaded: its agent doesn't answer.
        """
        if not await self._unpin(owner, pin.removeprefix("pin_")):
            raise NotFound(f"You have no pin '{pin}': its time may be over.")

    async def _unpin(self, owner: str, name: str) -> bool:
        where = self._pins.get(owner, name)
        if where is None:
            return False
        # Another key may keep it; and a replica that is gone, or has no agent now, keeps nothing.
        kept = where.replica.up and where.replica.agent is not None
        if kept and not self._pins.left_s(name, owner):
            await _answer(where.agent().client.unpin(where.tokens, where.salt, where.lora))
        if self._pins.get(owner, name) is where:  # it may have been asked for again meanwhile
            self._pins.drop(owner, name)
        return True


def _able(asked: Asked) -> list[Replica]:
    """Replicas with an agent, or the one that was asked for."""
    model, replicas = asked.dispatch.context.model, asked.dispatch.replicas
    if asked.replica:
        replicas = [replica for replica in replicas if replica.name == asked.replica]
        if not replicas:
            raise NotFound(f"No replica '{asked.replica}' serves the model '{model}' now.", param="replica")
    able = [replica for replica in replicas if replica.agent is not None and replica.agent.alive]
    if not able:
        whose = f"replica '{asked.replica}'" if asked.replica else f"any replica of '{model}'"
        raise NoAgent(
            f"No agent answers for {whose}: start the engine with tiers and an agent (hpkv launch), "
            "and tell the gateway where it is."
        )
    return able


def _where(asked: Asked, chosen: Candidate) -> _Where:
    replica, context = chosen.replica, asked.dispatch.context
    keys = context.prompt.keys_of(replica.engine.kind)
    if keys is None:
        raise InvalidRequest(
            f"The prompt's tokens aren't known for replica '{replica.name}': send 'token_ids'."
        )
    lora = context.model if replica.base(context.model) != context.model else None
    return _Where(replica, keys.tokens, asked.salt, lora)


def _prefetched(replica: str, tokens: int, order: Order, own: Mapping[str, int], end: int) -> Prefetched:
    """`own` lies in the engine's own tiers; the order's spans go on from there, up to `end`."""
    start = sum(own.values())
    found = {"ssd": 0, "shared": 0} | by_tier(order.spans, start, end)
    below = by_tier(order.spans, start, order.cut) if order.ticket else {}
    return Prefetched(
        replica,
        tokens,
        {**own, **found, "host": own["host"] + found.get("host", 0)},
        below.get("ssd", 0) + below.get("shared", 0),
        max(0, tokens - end),
    )


async def _answer(call: Awaitable[T]) -> T:
    """An agent's answer, or its refusal as the client should hear it."""
    try:
        return await call
    except AgentRefused as error:
        if error.code == "busy":
            raise Overloaded(f"The replica's agent: {error}") from error
        if error.code in ("unknown_lora", "failed"):
            raise Conflict(f"The replica's agent: {error}") from error
        raise InvalidRequest(f"The replica's agent: {error}") from error
    except EngineError as error:
        raise Overloaded("The replica's agent doesn't answer; try again soon.") from error
