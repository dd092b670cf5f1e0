"""The scheduler's side: vLLM's questions, answered from the tiers.

Nothing here raises into the engine: what fails is logged, counted, and answered as a miss.
"""

import functools
from collections.abc import Collection, Sequence

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_block_hash,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from cache.hierarchy import Hierarchy
from cache.tickets import Ticket
from cache.tiers.base import Tier
from engine_adapters.answering import answering
from engine_adapters.metrics import Meter
from engine_adapters.prefills import Prefills

from .loads import Answer, Load
from .namespaces import Lora, Namespaces
from .requests import Facts, Request
from .stores import NOTHING, Stores, Wanted

logger = init_logger("vllm.hpkv")

_LOOKUPS = {
    Answer.READY: LookupResult.HIT,
    Answer.WAIT: LookupResult.RETRY,
    Answer.MISS: LookupResult.MISS,
}
_SOURCES = {
    Tier.HOST: CacheHitSource.HOST,
    Tier.SSD: CacheHitSource.DISK,
    Tier.SHARED: CacheHitSource.EXTERNAL_UNSPECIFIED,
}


class _Served:
    """A request and its way up."""

    def __init__(self, request: Request, load: Load) -> None:
        self.request = request
        self.load = load
        self.finished = False


class Manager(OffloadingManager):
    """Answers about single pages by reading a plan that was made for the whole prompt."""

    def __init__(
        self,
        tiers: Hierarchy,
        namespaces: Namespaces,
        meter: Meter,
        page_tokens: int,
        load_seconds: float,
        end_seconds: float,
    ) -> None:
        """`end_seconds`: how long the engine may take to end."""
        self.tiers = tiers
        self.namespaces = namespaces
        self.meter = meter
        self.prefills = Prefills()
        self._page_tokens = page_tokens
        self._load_seconds = load_seconds
        self._end_seconds = end_seconds
        self._stores = Stores(tiers)
        self._served: dict[str, _Served] = {}
        self._orphans: list[Ticket] = []

    def count_error(self) -> None:
        """A call has failed, and was answered as a miss."""
        self.meter.errors += 1

    # -- told by our connector --------------------------------------------------------------------

    @answering(logger, None)
    def admit(self, request_id: str, facts: Facts, lora: Lora | None) -> None:
        """A request that vLLM is about to tell of; one that isn't admitted is served without tiers."""
        request = Request(facts, self._page_tokens, functools.partial(self.namespaces.of, lora))
        load = Load(self.tiers, request, self._page_tokens, self._load_seconds)
        self._served[request_id] = _Served(request, load)

    @answering(logger, True)
    def plan(self, request_id: str, keys: Sequence[bytes], computed_tokens: int) -> bool:
        """Decide what to load, and start it; returns whether that is known now.

        `keys` name all whole pages of the request.
        """
        served = self._served.get(request_id)
        return served is None or served.load.plan(keys, computed_tokens)

    @answering(logger, None)
    def stepped(self) -> None:
        """The output of a step is there."""
        prefill = self.prefills.end()
        if prefill is not None:
            self.tiers.saw_prefill(*prefill)

    def flushed(self) -> None:
        """The copies that vLLM forgot at `reset_cache` have ended."""
        self._stores.flushed()
        for ticket in self._orphans:
            ticket.release()
        self._orphans.clear()

    # -- asked by vLLM: up ------------------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Nothing to say: `admit` was called before."""
        return RequestOffloadingContext()

    @answering(logger, LookupResult.MISS)
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Read the plan."""
        served = self._served.get(req_context.req_id)
        if served is None:
            return LookupResult.MISS
        return _LOOKUPS[served.load.answer(get_offload_block_hash(key))]

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Where the page lay when the request was planned."""
        return _SOURCES[self._served[req_context.req_id].load.source(get_offload_block_hash(key))]

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        """Rows of pages that a look-up called a hit: they are claimed, so this can't fail."""
        load = self._served[req_context.req_id].load
        hashes = [get_offload_block_hash(key) for key in keys]
        self.meter.loaded.update(map(load.source, hashes))
        return CPULoadStoreSpec(load.copy(hashes))

    @answering(logger, None)
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """The rows are copied."""
        served = self._served.get(req_context.req_id)
        if served is not None:
            served.load.copied()
            if served.finished:
                del self._served[req_context.req_id]

    # -- asked by vLLM: in ------------------------------------------------------------------------

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput:
        """Rows for the pages that are wanted; the others are there already, or dropped for want of room."""
        wanted = self._begin_store(keys, req_context)
        offered = {get_offload_block_hash(key): key for key in keys}
        return PrepareStoreOutput(
            [offered[key] for key in wanted.keys], CPULoadStoreSpec(list(wanted.slots)), []
        )

    @answering(logger, None)
    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        """The rows are filled."""
        self._stores.end(map(get_offload_block_hash, keys), success)

    @answering(logger, NOTHING)
    def _begin_store(self, keys: Collection[OffloadKey], context: ReqContext) -> Wanted:
        served = self._served.get(context.req_id)
        if served is None:
            return NOTHING
        ends = (context.get_offload_key_position(key) for key in keys)
        numbers = [end // self._page_tokens - 1 for end in ends if end is not None]
        return self._stores.begin(served.request, list(map(get_offload_block_hash, keys)), numbers)

    # -- asked by vLLM: the rest ------------------------------------------------------------------

    @answering(logger, None)
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Requests that run now do without what they haven't taken."""
        for request_id in context.new_req_ids:
            if request_id in self._served:
                self._served[request_id].load.release()

    @answering(logger, None)
    def on_request_finished(self, req_context: ReqContext) -> None:
        """Give back all that the request had; a copy under way gives back when it ends."""
        served = self._served.get(req_context.req_id)
        if served is None:
            return
        served.finished = True
        served.load.release()
        if not served.load.copying:
            del self._served[req_context.req_id]

    def has_pending_work(self) -> bool:
        """One more step, if metrics wait to be told. vLLM asks when it has no requests."""
        return self.meter.hasten()

    @answering(logger, None)
    def reset_cache(self) -> None:
        """Forget `host`. Slots that forgotten copies use stay taken until `flushed`."""
        self._stores.orphan()
        for request_id, served in list(self._served.items()):
            copying, ticket = served.load.copying, served.load.give_up()
            if ticket is not None and copying:
                self._orphans.append(ticket)
            elif ticket is not None:
                ticket.release()
            if served.finished:
                del self._served[request_id]
        self.tiers.clear(Tier.HOST)

    @answering(logger, None)
    def get_stats(self) -> OffloadingConnectorStats | None:
        """What has grown since the last call."""
        growth = self.meter.take()
        if growth is None:
            return None
        stats = OffloadingConnectorStats()
        for (name, labels), value in growth.counters.items():
            stats.increase_counter(name, value, labels)
        for (name, labels), value in growth.gauges.items():
            stats.set_gauge(name, value, labels)
        for (name, labels), seconds in growth.observations.items():
            for value in seconds:
                stats.observe_histogram(name, value, labels)
        return stats

    def shutdown(self) -> None:
        """Write what waits, stop the threads, close the stores."""
        if not self.tiers.flush(self._end_seconds):
            logger.warning("not all pages were written in %g s; those are lost", self._end_seconds)
        self.tiers.close()
