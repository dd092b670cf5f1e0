"""Prefetches that an agent is asked for: what they bring, keep, join and let go."""

import asyncio

import pytest

from engine_adapters import wire
from engine_adapters.agent import orders
from engine_adapters.errors import AgentRefused
from tests.cache.remote import Remote
from tests.engine_adapters.agent.build import (
    ended,
    eventually,
    spans,
    tokens,
)


async def test_prefetch_brings_pages_up_and_keeps_them(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    order = await client.prefetch(tokens(6), seconds=30)
    assert (spans(order), order.cut) == ([("ssd", 96)], 96)
    assert await ended(client, order.ticket) == wire.Progress(tokens=96, loaded=96, running=False)
    assert spans(await client.match(tokens(6))) == [("host", 96)]
    for other in range(1, 6):
        served.put(tokens(6, start=other))  # more than the rest of host
    assert spans(await client.match(tokens(6))) == [("host", 96)], "evicted before its request came"
    done = await client.cancel(order.ticket)
    assert (done.loaded, done.running) == (96, False)
    assert served.rig.tiers.drain(5)
    assert (await client.stats()).held_pages == 0


async def test_prefetch_ends_by_its_deadline(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    order = await client.prefetch(tokens(6), seconds=0.3)
    await ended(client, order.ticket)

    async def let_go() -> bool:
        return (await client.stats()).leases == 0

    await eventually(let_go)
    assert (await client.status(order.ticket)).loaded == 96, "how it ended is told for a while"


async def test_prefetch_of_nothing_orders_nothing(both) -> None:
    _, client = both()
    order = await client.prefetch(tokens(6), seconds=5)
    assert (order.ticket, order.spans, order.cut) == (0, [], 0)
    assert await client.status(0) == wire.Progress(tokens=0, loaded=0, running=False)
    assert (await client.prefetch([], seconds=5)).ticket == 0
    assert (await client.stats()).prefetches == 0


async def test_prefetch_below_the_threshold_orders_nothing(both) -> None:
    served, client = both(threshold=100)
    served.put(tokens(6))
    served.drop_host()
    order = await client.prefetch(tokens(6), seconds=5)
    assert (order.ticket, spans(order)) == (0, [("ssd", 96)])


async def test_prefetch_loads_what_the_engine_lacks_alone(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    order = await client.prefetch(tokens(6), seconds=30, computed=48)
    assert (await ended(client, order.ticket)).loaded == 48
    assert spans(await client.match(tokens(6), computed=48)) == [("host", 96)]
    assert spans(await client.match(tokens(6))) == [("ssd", 48), ("host", 96)]
    await client.cancel(order.ticket)


async def test_an_equal_prefetch_joins(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    served.rig.disk.works.clear()
    first = await client.prefetch(tokens(6), seconds=30)
    second = await client.prefetch(tokens(6), seconds=30)
    other = await client.prefetch(tokens(6), seconds=30, computed=16)
    assert first.ticket == second.ticket != other.ticket
    assert (await client.stats()).prefetches == 2
    await client.cancel(other.ticket)
    assert (await client.cancel(first.ticket)).running, "one of two clients gave it up"
    served.rig.disk.works.set()
    assert (await ended(client, first.ticket)).loaded == 96
    assert (await client.stats()).leases == 1
    await client.cancel(second.ticket)
    assert (await client.stats()).leases == 0


async def test_a_joined_prefetch_lasts_as_long_as_either_asked(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    first = await client.prefetch(tokens(6), seconds=0.3)
    assert (await client.prefetch(tokens(6), seconds=30)).ticket == first.ticket
    await asyncio.sleep(1.2)
    assert (await client.stats()).leases == 1
    await client.cancel(first.ticket)
    await client.cancel(first.ticket)


async def test_a_prefetch_whose_time_is_over_is_not_joined(both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MOST", 1)
    served, client = both()
    served.put(tokens(6))
    served.put(tokens(2, start=1))
    first = await client.prefetch(tokens(6), seconds=0.3)
    await asyncio.sleep(0.3)
    second = await client.prefetch(tokens(6), seconds=0.3)
    assert second.ticket not in (0, first.ticket)
    assert (await client.stats()).leases <= 1

    async def room_again() -> bool:
        try:
            order = await client.prefetch(tokens(2, start=1), seconds=30)
        except AgentRefused:
            return False
        await client.cancel(order.ticket)
        return True

    await eventually(room_again)


async def test_a_prefetch_that_failed_is_not_joined(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    served.rig.disk.read_error = 5
    first = await client.prefetch(tokens(6), seconds=30)
    assert await ended(client, first.ticket) == wire.Progress(tokens=96, loaded=0, running=False)
    served.rig.disk.read_error = None
    served.put(tokens(6))
    served.drop_host()
    second = await client.prefetch(tokens(6), seconds=30)
    assert second.ticket not in (0, first.ticket)
    assert (await ended(client, second.ticket)).loaded == 96
    for ticket in (first.ticket, second.ticket):
        await client.cancel(ticket)


async def test_after_a_clear_an_equal_one_loads_again(both) -> None:
    """An engine's own reset knows nothing of orders."""
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    first = await client.prefetch(tokens(6), seconds=60)
    assert (await ended(client, first.ticket)).loaded == 96
    served.drop_host()
    assert (await client.stats()).held_pages == 0
    again = await client.prefetch(tokens(6), seconds=60)
    assert again.ticket != first.ticket
    assert (await ended(client, again.ticket)).loaded == 96
    assert spans(await client.match(tokens(6))) == [("host", 96)]
    await client.cancel(again.ticket)


async def test_it_says_whether_all_tiers_have_answered(both) -> None:
    slow = Remote(look_seconds=0.2)
    served, client = both(more=[slow])
    served.put(tokens(2))
    order = await client.prefetch(tokens(6), seconds=30)
    assert (spans(order), order.complete) == ([("host", 32)], False)
    await client.cancel(order.ticket)
    slow.look_seconds = 0.0

    async def answered() -> bool:
        order = await client.prefetch(tokens(6), seconds=30)
        await client.cancel(order.ticket)
        return order.complete

    await eventually(answered)


async def test_cancelled_while_it_loads(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    served.rig.disk.works.clear()
    order = await client.prefetch(tokens(6), seconds=30)
    assert (await client.cancel(order.ticket)).running is False
    served.rig.disk.works.set()

    async def let_go() -> bool:
        stats = await client.stats()
        return (stats.tickets, stats.leases, stats.held_pages) == (0, 0, 0)

    await eventually(let_go)


async def test_unknown_tickets_have_ended(both) -> None:
    _, client = both()
    ended = wire.Progress(tokens=0, loaded=0, running=False)
    assert await client.status(12345) == ended
    assert await client.cancel(12345) == ended


async def test_open_prefetches_are_bounded(both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MOST", 2)
    served, client = both()
    tickets = []
    for other in range(2):
        served.put(tokens(2, start=other))
        tickets.append((await client.prefetch(tokens(2, start=other), seconds=30)).ticket)
    served.put(tokens(2, start=2))
    with pytest.raises(AgentRefused, match="open") as error:
        await client.prefetch(tokens(2, start=2), seconds=30)
    assert error.value.code == "busy"
    await client.cancel(tickets[0])
    tickets.append((await client.prefetch(tokens(2, start=2), seconds=30)).ticket)
    for ticket in tickets:
        await client.cancel(ticket)


async def test_a_hundred_prefetches_larger_than_host(both) -> None:
    """Nothing leased is evicted, requests get what they need, all tickets end, nothing stays held."""
    served, client = both(slots=64, cap=64 << 20)
    prompts = [tokens(8, start=number) for number in range(100)]
    for prompt in prompts:
        served.put(prompt)
        assert served.rig.tiers.drain(5)
    served.drop_host()
    served.rig.disk.slow_seconds = 0.0005
    kept = await client.prefetch(prompts[0], seconds=60)
    await ended(client, kept.ticket)
    first = await asyncio.gather(*(client.prefetch(prompt, seconds=2.0) for prompt in prompts[1:]))
    assert spans(await client.match(prompts[0])) == [("host", 128)]
    named = served.inside.prompt(prompts[99], None, None)
    match = served.rig.tiers.match(named.namespace, named.keys)
    plan = served.rig.tiers.plan(match)
    ticket = served.rig.tiers.load(plan, named.pages(0, plan.cut))
    assert (await asyncio.to_thread(ticket.wait, 10)).ready == 8, "a request went without"
    ticket.release()
    tickets = [order.ticket for order in first if order.ticket]
    assert 0 < len(tickets) < 99, "prefetches beyond half of host were taken"
    for number in tickets:
        await ended(client, number)
    assert spans(await client.match(prompts[0])) == [("host", 128)]
    await client.cancel(kept.ticket)

    async def let_go() -> bool:
        stats = await client.stats()
        return (stats.tickets, stats.leases, stats.held_pages) == (0, 0, 0)

    await eventually(let_go)
