"""What the calls say and do, over real tiers: `host`, `ssd` on a disk, a remote store in memory."""

import asyncio
import threading

import numpy as np
import pytest

from cache.keys import tenant_tag
from cache.prefix import Tokens
from engine_adapters import wire
from engine_adapters.agent.base import Prompt
from engine_adapters.errors import AgentRefused
from engine_adapters.settings import PinSettings
from tests.cache.remote import Remote
from tests.engine_adapters.agent.build import LORA, PAGE_TOKENS, eventually, listed, spans, tokens
from tests.engine_adapters.agent.conftest import Serve

# ---- match ----------------------------------------------------------------------------------------


async def test_match_tells_the_fastest_tier_of_each_span(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    served.put(tokens(2))
    found = await client.match(tokens(8))
    assert spans(found) == [("host", 32), ("ssd", 96)]
    assert found.cut == 96


async def test_match_is_from_what_the_engine_has_computed(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    found = await client.match(tokens(8), computed=40)
    assert (spans(found), found.cut) == ([("ssd", 96)], 96)
    nothing = await client.match(tokens(8), computed=500)
    assert (nothing.spans, nothing.cut) == ([], 496)


async def test_match_tells_what_is_there_and_not_worth_loading(both) -> None:
    served, client = both(threshold=100)
    served.put(tokens(6))
    found = await client.match(tokens(6))
    assert (spans(found), found.cut) == ([("host", 96)], 0)


async def test_match_of_nothing(both) -> None:
    _, client = both()
    assert (await client.match(tokens(4))).spans == []
    assert (await client.match([1, 2, 3])).spans == []
    assert (await client.match([])).cut == 0


async def test_match_waits_for_a_remote_store(both) -> None:
    served, client = both(more=[remote := Remote(look_seconds=0.01)])
    named = served.inside.prompt(tokens(3), None, None)
    remote.pages = dict.fromkeys(named.keys, bytes(8192))
    assert spans(await client.match(tokens(3))) == [("shared", 48)]


async def test_matches_are_no_requests(both) -> None:
    """A match that is asked for counts nowhere, and uses no page."""
    served, client = both()
    served.put(tokens(6))
    assert served.rig.tiers.drain(5)
    before = await client.stats()
    for _ in range(5):
        await client.match(tokens(8))
    assert await client.stats() == before


async def test_a_prompts_pages_are_named_once(both, monkeypatch: pytest.MonkeyPatch) -> None:
    served, client = both()
    served.put(tokens(6), salt="a")
    named, name = [], served.inside.prompt

    def prompt(tokens: Tokens, salt: str | None, lora: str | None) -> Prompt:
        named.append((len(tokens), salt, lora))
        return name(tokens, salt, lora)

    monkeypatch.setattr(served.inside, "prompt", prompt)
    assert (await client.match(tokens(6))).spans == []
    for _ in range(3):
        assert spans(await client.match(tokens(6), "a")) == [("host", 96)]
    await client.cancel((await client.prefetch(tokens(6), "a", seconds=30)).ticket)
    assert named == [(96, None, None), (96, "a", None)]
    for _ in range(2):
        await client.match(tokens(6), "a", LORA)
    assert named[2:] == [(96, "a", LORA)] * 2, "an adapter's content may have changed"


async def test_an_unknown_lora_is_refused(both) -> None:
    _, client = both()
    with pytest.raises(AgentRefused, match="other") as error:
        await client.match(tokens(2), lora="other")
    assert error.value.code == "unknown_lora"


async def test_loras_have_pages_of_their_own(both) -> None:
    served, client = both()
    served.put(tokens(3), lora=LORA)
    assert (await client.match(tokens(3))).spans == []
    assert spans(await client.match(tokens(3), lora=LORA)) == [("host", 48)]


# ---- pins -----------------------------------------------------------------------------------------


async def test_pinned_pages_outlive_all_others(both) -> None:
    served, client = both(cap=1 << 20)
    served.put(tokens(4))
    assert await client.pin(tokens(4), seconds=60) == wire.Kept(tokens=64, seconds=60.0)
    for other in range(1, 40):
        served.put(tokens(6, start=other))
        assert served.rig.tiers.drain(5)
    assert spans(await client.match(tokens(4))) == [("host", 64)]
    assert await client.unpin(tokens(4)) == wire.Kept(tokens=0, seconds=0.0)
    for other in range(40, 80):
        served.put(tokens(6, start=other))
        assert served.rig.tiers.drain(5)
    assert (await client.match(tokens(4))).spans == []


async def test_pins_end_by_themselves(both) -> None:
    served, client = both(pins=PinSettings(longest_s=0.3))
    served.put(tokens(4))
    assert (await client.pin(tokens(4), seconds=60)).seconds == 0.3

    async def let_go() -> bool:
        return (await client.stats()).leases == 0

    await eventually(let_go)


async def test_pinning_again_starts_anew_and_takes_no_more_room(both) -> None:
    served, client = both()
    served.put(tokens(8))
    for _ in range(5):
        assert (await client.pin(tokens(8), seconds=60)).tokens == 128
    assert (await client.stats()).leases == 1


async def test_pins_keep_a_share_of_host_at_the_most(both) -> None:
    served, client = both()  # 16 slots, of which half
    served.put(tokens(6))
    served.put(tokens(6, start=1))
    assert (await client.pin(tokens(6), seconds=60)).tokens == 96
    assert (await client.pin(tokens(6, start=1), seconds=60)).tokens == 32, "the rest of the share"
    served.put(tokens(2, start=2))
    with pytest.raises(AgentRefused, match="50%") as error:
        await client.pin(tokens(2, start=2), seconds=60)
    assert error.value.code == "too_large"
    await client.unpin(tokens(6))
    assert (await client.pin(tokens(2, start=2), seconds=60)).tokens == 32


async def test_without_a_host_tier_pins_keep_a_share_of_ssd(both) -> None:
    served, client = both(slots=0, cap=4 << 20, pins=PinSettings(host_share=0.01))  # 5 pages of 512
    for other in range(3):
        assert served.put(tokens(4, start=other)) == 4
    assert (await client.pin(tokens(4), seconds=60)).tokens == 64
    assert (await client.pin(tokens(4, start=1), seconds=60)).tokens == 16, "the rest of the share"
    with pytest.raises(AgentRefused, match="1% of ssd"):
        await client.pin(tokens(4, start=2), seconds=60)


async def test_a_pin_of_what_is_not_here_keeps_nothing(both) -> None:
    served, client = both(more=[remote := Remote()])
    named = served.inside.prompt(tokens(3), None, None)
    remote.pages = dict.fromkeys(named.keys, bytes(8192))
    assert await client.pin(tokens(3), seconds=60) == wire.Kept(tokens=0, seconds=0.0)
    assert await client.pin([1], seconds=60) == wire.Kept(tokens=0, seconds=0.0)
    assert (await client.stats()).leases == 0


# ---- clear, tenants -------------------------------------------------------------------------------


async def test_clear_takes_pinned_pages_too(both) -> None:
    served, client = both()
    served.put(tokens(4))
    await client.pin(tokens(4), seconds=60)
    assert served.rig.tiers.drain(5)
    assert (await client.clear()).pages == 8
    assert (await client.match(tokens(4))).spans == []
    stats = await client.stats()
    assert (stats.leases, stats.held_pages) == (0, 0)


async def test_clear_of_one_tier(both) -> None:
    served, client = both()
    served.put(tokens(4))
    assert served.rig.tiers.drain(5)
    assert (await client.clear("host")).pages == 4
    assert spans(await client.match(tokens(4))) == [("ssd", 64)]


async def test_a_clear_that_hangs_holds_up_no_snapshot(both, monkeypatch: pytest.MonkeyPatch) -> None:
    served, client = both(pins=PinSettings())
    served.put(tokens(4))
    hangs = threading.Event()
    monkeypatch.setattr(served.rig.ssd, "clear", lambda tenant=None: hangs.wait(20) and 0)
    clearing = asyncio.create_task(client.clear("ssd", timeout_s=30))
    try:
        await asyncio.sleep(0.05)
        assert await listed(client, "host") == served.names(tokens(4))
        assert not clearing.done()
    finally:
        hangs.set()
    assert (await clearing).pages == 0


async def test_a_clear_that_hangs_in_shared_holds_up_none_of_another_tier(both) -> None:
    hangs = threading.Event()

    class Hanging(Remote):
        def clear(self, tenant: int | None = None) -> int:
            hangs.wait(20)
            return super().clear(tenant)

    served, client = both(more=[Hanging()])
    served.put(tokens(4))
    clearing = asyncio.create_task(client.clear("shared", timeout_s=30))
    try:
        await asyncio.sleep(0.05)
        assert (await client.clear("host")).pages == 4
        assert not clearing.done()
    finally:
        hangs.set()
    await clearing


async def test_a_clear_that_fails_says_so(both, monkeypatch: pytest.MonkeyPatch) -> None:
    from cache.errors import FolderError

    served, client = both()

    def refuse(tenant: int | None = None) -> int:
        raise FolderError("the disk refuses")

    monkeypatch.setattr(served.rig.ssd, "clear", refuse)
    with pytest.raises(AgentRefused, match="the disk refuses") as error:
        await client.clear()
    assert error.value.code == "failed"


async def test_tenants_never_see_each_others_pages(both) -> None:
    served, client = both()
    served.put(tokens(4), salt="a")
    served.drop_host()
    served.put(tokens(2), salt="a")
    for salt in ("b", None, ""):
        assert (await client.match(tokens(4), salt)).spans == []
        assert (await client.prefetch(tokens(4), salt, seconds=5)).ticket == 0
        assert (await client.pin(tokens(4), salt, seconds=5)).tokens == 0
        assert (await client.clear(salt=salt)).pages == 0 if salt is not None else True
    assert spans(await client.match(tokens(4), "a")) == [("host", 32), ("ssd", 64)]
    assert await listed(client, "ssd") == served.names(tokens(4), "a")
    assert not await listed(client, "ssd") & served.names(tokens(4), "b")
    served.put(tokens(4), salt="b")
    await client.pin(tokens(4), "b", seconds=60)
    assert served.rig.tiers.drain(5)
    assert (await client.clear(salt="a")).pages == 2 + 4
    assert spans(await client.match(tokens(4), "b")) == [("host", 64)]
    assert (await client.stats()).leases == 1, "the other tenant's pin"


# ---- snapshot, hello, stats -----------------------------------------------------------------------


async def test_snapshots_list_what_is_there(both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE", 4)
    served, client = both()
    served.put(tokens(6))
    assert served.rig.tiers.drain(5)
    assert await listed(client, "host") == await listed(client, "ssd") == served.names(tokens(6))
    pieces = [piece async for piece in client.snapshot("ssd")]
    assert [len(piece.keys) for piece in pieces] == [4, 2]


async def test_an_empty_tiers_snapshot_is_one_empty_piece(both) -> None:
    _, client = both()
    (piece,) = [piece async for piece in client.snapshot("ssd")]
    assert len(piece.keys) == 0


async def test_stats_grow_with_what_happens(both) -> None:
    served, client = both()
    served.put(tokens(6))
    served.drop_host()
    await client.cancel((await client.prefetch(tokens(6), seconds=30)).ticket)
    stats = await client.stats()
    assert stats.prefetches == 1
    assert stats.tiers["ssd"].stored_tokens == 96
    assert stats.tiers["ssd"].used_bytes > 6 * 8192
    assert stats.tiers["ssd"].tokens_per_s > 0
    assert stats.prefill_tokens_per_s == pytest.approx(10.0)
    assert stats.threshold == 16


async def test_hello_names_namespaces(both) -> None:
    served, client = both()
    identity = await client.hello()
    assert identity.namespace == served.inside.facts().namespace.hex()
    assert identity.loras == {LORA: served.inside.facts().loras[LORA].hex()}
    assert identity.events == "ipc:///events"
    assert identity.tiers["gpu"].capacity_bytes == 2 << 20


def test_page_names_agree_with_the_index(serve: Serve) -> None:
    """Prefix keys of pages told in the middle of a prompt are those of the whole."""
    named = serve().inside.prompt(tokens(6), "s", LORA)
    whole = named.pages(0, 6)
    assert named.pages(2, 5) == whole[2:5]
    assert [page.end_token for page in whole] == [PAGE_TOKENS * n for n in range(1, 7)]
    assert {page.tenant for page in whole} == {tenant_tag("s")}
    assert len(np.unique([page.prefix_key for page in whole])) == 6
