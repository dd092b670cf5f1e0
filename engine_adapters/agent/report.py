"""What an agent tells of its engine: who it is, how its tiers fare."""

from cache.hierarchy import Hierarchy
from cache.statistics import TierCounts
from cache.tiers.base import Usage
from engine_adapters import wire
from engine_adapters.agent.base import Facts


def identity(facts: Facts, tiers: Hierarchy, epoch: int) -> wire.Identity:
    """The answer to `Hello`."""
    return wire.Identity(
        engine=facts.engine,
        engine_version=facts.engine_version,
        model=facts.model,
        namespace=facts.namespace.hex(),
        loras={name: namespace.hex() for name, namespace in facts.loras.items()},
        store_id=facts.store_id,
        page_tokens=tiers.settings.page_tokens,
        tiers=_tiers(facts, tiers),
        threshold=tiers.settings.threshold,
        epoch=epoch,
        events=facts.events,
        replay=facts.replay,
    )


def statistics(facts: Facts, tiers: Hierarchy) -> wire.Statistics:
    """The answer to `Stats`."""
    counts, activity, size = tiers.statistics(), tiers.activity(), tiers.settings.page_tokens
    return wire.Statistics(
        tiers=_tiers(facts, tiers),
        prefill_tokens_per_s=tiers.prefill_rate(),
        threshold=tiers.settings.threshold,
        refused_by_threshold_tokens=counts.refused_by_threshold * size,
        refused_by_cost_tokens=counts.refused_by_cost * size,
        missed_tokens=counts.misses * size,
        prefetches=counts.prefetches,
        tickets=activity.tickets,
        leases=activity.leases,
        held_pages=activity.held,
    )


def _tiers(facts: Facts, tiers: Hierarchy) -> dict[wire.TierName, wire.TierInfo]:
    counts, usage, rates = tiers.statistics().tiers, tiers.usage(), tiers.rates()
    size = tiers.settings.page_tokens
    known: dict[wire.TierName, wire.TierInfo] = {
        tier.value: _info(usage[tier], 0.0 if facts.retired else rates[tier], counts[tier], size)
        for tier in usage
    }
    return {**facts.tiers, **known}


def _info(usage: Usage, pages_per_s: float, counts: TierCounts, size: int) -> wire.TierInfo:
    return wire.TierInfo(
        capacity_bytes=usage.capacity,
        used_bytes=usage.bytes,
        tokens_per_s=pages_per_s * size,
        hit_tokens=counts.hits * size,
        loaded_tokens=counts.loaded * size,
        stored_tokens=counts.stored * size,
        errors=counts.damaged + counts.failed + counts.expired,
    )
