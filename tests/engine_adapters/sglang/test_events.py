import json
import lzma
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache.prefix import MASK, PrefixKeys, seed
from engine_adapters.errors import EventsInvalid
from engine_adapters.events import NO_PARENT, SLICE_BLOCKS, BlockEvents, Change, Cleared, Origin, Tier
from engine_adapters.sglang.events import SglangEvents
from gateway.index import Index

RANK = Origin("a")
RECORDED = Path(__file__).parent / "data/sglang-host-tier.json.xz"


def stored(
    hashes: list[int], tokens: list[Any], parent: int | None = None, size: int = 2, **fields: Any
) -> Any:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": size, "lora_id": None, "medium": "GPU"} | fields


def removed(hashes: list[int], medium: str = "GPU") -> Any:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium}


def decode(*events: Any) -> list[Change]:
    decoder = SglangEvents()
    decoder.feed(msgspec.msgpack.encode([1.5, events, 0]))
    return decoder.take()


def only(changes: list[Change]) -> BlockEvents:
    (change,) = changes
    assert isinstance(change, BlockEvents)
    return change


def test_both_of_its_tiers_come_as_columns_in_order() -> None:
    events = only(
        decode(
            stored([7, -8], [1, 2, 3, 4]),
            stored([7, -8], [1, 2, 3, 4], medium="CPU_PINNED"),
            removed([-8]),
            stored([9], [5, 6], parent=-8, medium="CPU_PINNED"),
            removed([7], "CPU_PINNED"),
        )
    )
    assert events.stored.tolist() == [True, True, False, True, False]
    assert events.tiers.tolist() == [Tier.GPU, Tier.HOST, Tier.GPU, Tier.HOST, Tier.HOST]
    assert events.hashes.tolist() == [7, MASK - 7, 7, MASK - 7, MASK - 7, 9, 7]
    assert events.parents.tolist() == [NO_PARENT, NO_PARENT, NO_PARENT, MASK - 7, NO_PARENT]
    assert events.seeds[0] == seed()


@pytest.mark.parametrize(
    ("fields", "root"),
    [
        ({}, (None, None)),
        ({"cache_salt": "x"}, (None, "x")),
        ({"lora_name": "x"}, ("x", None)),
        ({"lora_name": "x", "cache_salt": "x"}, ("x", "x")),
    ],
)
def test_lora_and_salt_make_the_seed(fields: Any, root: Any) -> None:
    assert only(decode(stored([7], [1, 2], **fields))).seeds.tolist() == [seed(*root)]


@pytest.mark.parametrize(
    "event",
    [
        stored([7], [1, 2], medium="DISK"),
        stored([7], [1, 2], medium="EXTERNAL"),
        removed([7], "EXTERNAL"),
        stored([], []),
        stored([7, 8], [1, 2, 3]),
    ],
)
def test_lower_tiers_and_blocks_without_their_tokens_are_left_out(event: Any) -> None:
    assert decode(event) == []


def test_a_reset_clears_its_host_tier_too() -> None:
    assert decode({"type": "AllBlocksCleared"}) == [Cleared((Tier.GPU, Tier.HOST))]


def test_pairs_of_speculative_decoding_count_by_their_first_token() -> None:
    assert only(decode(stored([7], [[1, 2], [2, 3]]))).tokens.tolist() == [[1, 2]]


def test_pages_of_one_token_are_followed_too() -> None:
    index = Index(blocks=1 << 14)
    index.attach(RANK)
    count = 2 * SLICE_BLOCKS + 10
    index.push(RANK, decode(stored(list(range(1, count + 1)), list(range(count)), size=1)))
    index.push(RANK, decode(removed(list(range(5, 10)))))
    while index.work(0.0):
        pass
    assert index.match(PrefixKeys(range(count), seed())).leading().tolist() == [4]
    index.push(RANK, decode(stored(list(range(5, 10)), list(range(4, 9)), parent=4, size=1)))
    while index.work(0.0):
        pass
    assert index.match(PrefixKeys(range(count), seed())).leading().tolist() == [count - 1], (
        "all but the last one"
    )


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockTeleported"},
        stored([7], [-1, 2]),
        stored([7], [1, 2**40]),
        stored([7], [[1, 2], 3]),
        stored([7], [1, [2, 3]]),
        stored([b"x" * 32], [1, 2]),  # type: ignore[list-item]
    ],
)
def test_what_sglang_never_sends_is_refused_whole(event: Any) -> None:
    decoder = SglangEvents()
    with pytest.raises(EventsInvalid, match="SGLang"):
        decoder.feed(msgspec.msgpack.encode([1.5, [event], 0]))
    assert decoder.take() == []


def test_a_recorded_sglang_predicts_the_cached_tokens_it_reported_by_source() -> None:
    """A real SGLang 0.5.23 with its host tier and 3,072 tokens of KV: prompts of 631 push each other out, one
    hits both tiers, and there is a flush. Before each request the index says how much of it lies where."""
    said = json.loads(lzma.decompress(RECORDED.read_bytes()))
    index, decoder, applied = Index(blocks=1 << 14), SglangEvents(), 0
    index.attach(RANK)
    for request in said["requests"]:
        for _, payload in said["frames"][applied : request["after"]]:
            decoder.feed(bytes.fromhex(payload))
            index.push(RANK, decoder.take())
        applied = request["after"]
        while index.work(0.0):
            pass
        tokens = index.match(PrefixKeys(request["ids"], seed())).tokens[0].tolist()
        assert sum(tokens) == request["cached"]
        if request["by_source"]:
            assert {"device": tokens[Tier.GPU], "host": tokens[Tier.HOST]} == request["by_source"]
    assert any(request["by_source"] and request["by_source"]["host"] for request in said["requests"])
