"""Ahead of a request: its replica's agent brings up what the request will want, while that is on its way.

Nobody waits for the agent. The order goes out just before the request; what comes of it is followed by a task
of its own, which tells the agent at the request's first chunk, or its end, that the pages needn't be kept for
it any more. An agent that is mute, slow or gone costs its prefetches and nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from engine_adapters.errors import EngineError
from engine_adapters.events import Tier
from engine_adapters.wire import Order
from gateway.fleet import Agent, Replica
from gateway.prefetch.metrics import Outcome, PrefetchMetrics, outcome
from gateway.routing import Candidate, RequestContext

PROTECTED_S: Final = 60.0
"""How long pages are kept for a request that doesn't come: only a gateway that dies leaves one behind."""
ANSWER_S: Final = 5.0
MOST_OPEN: Final = 64
"""Prefetches of requests at one replica at a time; its agent takes many more."""

Absent = Callable[[RequestContext, Replica, int], None]
"""Tells the index that the page after so many tokens isn't on the replica's shared storage after all."""


class Prefetch:
    """What a request's forwarder says of it. This one is of requests that need none."""

    ordered: bool = False

    def first_chunk(self) -> None:
        """The answer has begun: what was brought up has been used."""

    def end(self) -> None:
        """The request is over at this replica, however it ended."""


_NONE: Final = Prefetch()


def computed(chosen: Candidate, agent: Agent) -> int:
    """Leading tokens that lie in the engine's own tiers, which the agent has nothing to do with."""
    return chosen.gpu + (0 if Tier.HOST in agent.rates else chosen.cached[Tier.HOST])


class Prefetcher:
    """Orders prefetches for requests whose replica would load from below its host memory."""

    def __init__(self, absent: Absent, metrics: PrefetchMetrics, *, active: bool) -> None:
        self._absent = absent
        self._metrics = metrics
        self._active = active
        self._open: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, context: RequestContext, chosen: Candidate) -> Prefetch:
        """Order what the chosen replica would load, if it would. The order goes out when the caller next
        lets the event loop turn."""
        if not (chosen.cached[Tier.SSD] or chosen.cached[Tier.SHARED]) or not self._active:
            return _NONE
        replica = chosen.replica
        agent = replica.agent
        if agent is None or not agent.alive:
            return _NONE
        if self._open[replica.name] >= MOST_OPEN:
            self._metrics.ended(replica.name, Outcome.SKIPPED)
            return _NONE
        prefetch = _Ordered(context, chosen, agent)
        self._metrics.issued(replica.name)
        self._open[replica.name] += 1
        task = asyncio.create_task(self._follow(prefetch), name=f"prefetch {context.request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return prefetch

    async def close(self) -> None:
        """Follow none any more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _follow(self, prefetch: "_Ordered") -> None:
        name = prefetch.chosen.replica.name
        try:
            await self._run(prefetch, name)
        except EngineError:
            self._metrics.ended(name, Outcome.FAILED)
        finally:
            self._open[name] -= 1
            self._open += Counter()  # drops those at zero: replicas come and go

    async def _run(self, prefetch: "_Ordered", name: str) -> None:
        order = await prefetch.order()
        self._learn(prefetch, order)
        if not order.ticket:
            self._metrics.ended(name, Outcome.MISSED)
            return
        self._metrics.ordered(name, order, prefetch.start)
        await prefetch.over.wait()
        progress = await prefetch.agent.client.cancel(order.ticket, ANSWER_S)
        self._metrics.ended(name, outcome(progress, taken=prefetch.taken), progress.loaded)

    def _learn(self, prefetch: "_Ordered", order: Order) -> None:
        """What lies on shared storage is a hint: here is where a wrong one shows. Silence says nothing."""
        if not order.complete:
            return
        found = order.spans[-1].end if order.spans else prefetch.start
        if prefetch.chosen.held[Tier.SHARED] and found < sum(prefetch.chosen.held):
            self._absent(prefetch.context, prefetch.chosen.replica, found)


class _Ordered(Prefetch):
    """One that was ordered.

    Attributes:
        computed: leading tokens in the engine's own tiers.
        start: the token at which the order's first page begins.
        over: set at the request's first chunk (then it is `taken`), or at its end.
    """

    ordered = True

    def __init__(self, context: RequestContext, chosen: Candidate, agent: Agent) -> None:
        self.context = context
        self.chosen = chosen
        self.agent = agent
        self.computed = computed(chosen, agent)
        self.start = self.computed - self.computed % agent.page_tokens
        self.taken = False
        self.over = asyncio.Event()

    async def order(self) -> Order:
        """Ask the agent. Raises EngineError."""
        replica, model = self.chosen.replica, self.context.model
        keys = self.context.prompt.keys_of(replica.engine.kind)
        assert keys is not None  # or nothing of it would be known to lie anywhere
        return await self.agent.client.prefetch(
            keys.tokens,
            self.context.body.get("cache_salt"),
            model if replica.base(model) != model else None,
            seconds=PROTECTED_S,
            computed=self.computed,
            timeout_s=ANSWER_S,
        )

    def first_chunk(self) -> None:
        self.taken = True
        self.over.set()

    def end(self) -> None:
        self.over.set()
