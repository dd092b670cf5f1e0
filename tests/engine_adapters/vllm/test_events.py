import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from cache.prefix import Extra, PrefixKeys, digest, seed
from engine_adapters.errors import EventsInvalid
from engine_adapters.events import NO_PARENT, SLICE_BLOCKS, BlockEvents, Change, Cleared, Origin, Tier
from engine_adapters.vllm.events import VllmEvents
from gateway.index import Index

DATA = Path(__file__).parent / "data"
RANK = Origin("a")
DEEP = b"\x91" * 100_000 + b"\x00"


def stored(hashes, tokens, parent=None, size=2, **fields) -> dict[str, object]:
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return event | {"block_size": size, "lora_id": None, "medium": "GPU", "lora_name": None} | fields


def removed(hashes, **fields) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0} | fields


def decode(*events: dict[str, object], decoder: VllmEvents | None = None) -> list[Change]:
    decoder = decoder or VllmEvents()
    decoder.feed(msgspec.msgpack.encode([1.5, events, 0]))
    return decoder.take()


def only(changes: Sequence[Change]) -> BlockEvents:
    (change,) = changes
    assert isinstance(change, BlockEvents)
    return change


def test_stored_and_removed_come_as_columns_in_order():
    changes = decode(stored([7, 8], [1, 2, 3, 4]), removed([7]), stored([9], [5, 6], parent=8))
    events = only(changes)
    assert events.stored.tolist() == [True, False, True]
    assert events.counts.tolist() == [2, 1, 1]
    assert events.parents.tolist() == [NO_PARENT, NO_PARENT, 8]
    assert events.hashes.tolist() == [7, 8, 7, 9]
    assert events.tokens.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert events.seeds[0] == seed()
    assert events.tiers.tolist() == [Tier.GPU] * 3


def test_hashes_of_32_bytes_are_those_of_64_bits():
    raw = bytes(range(32))
    number = int.from_bytes(raw[-8:], "big")
    as_bytes = only(decode(stored([raw], [1, 2], parent=raw), removed([raw])))
    as_ints = only(decode(stored([number], [1, 2], parent=number), removed([number])))
    for column in ("hashes", "parents"):
        assert getattr(as_bytes, column).tolist() == getattr(as_ints, column).tolist() != [0, 0]


@pytest.mark.parametrize(
    ("fields", "root"),
    [
        ({}, (None, None)),
        ({"extra_keys": [None]}, (None, None)),
        ({"extra_keys": [["x"]]}, (None, "x")),
        ({"lora_name": "x", "extra_keys": [["x"]]}, ("x", None)),
        ({"lora_name": "x", "extra_keys": [["x", "x"]]}, ("x", "x")),
        ({"lora_name": "x", "extra_keys": [["x", ["image", 1], "y"]]}, ("x", "y")),
    ],
)
def test_lora_and_salt_make_the_seed_and_are_not_mistaken_for_each_other(fields, root):
    """Cache salt missing from event hashes; a LoRA name equal to a salt."""
    assert only(decode(stored([7], [1, 2], **fields))).seeds.tolist() == [seed(*root)]


def test_images_count_where_they_begin():
    keys = [["x", ["cat", 1]], ["x", ["cat", -1], ["dog", 0]], None]
    events = only(decode(removed([5]), stored([7, 8, 9], [1, 2, 3, 4, 5, 6], lora_name="x", extra_keys=keys)))
    assert [tuple(extra) for extra in events.extras] == [(1, 1, digest("cat")), (2, 0, digest("dog"))]


def test_prompt_embeddings_are_never_taken_for_their_placeholder_tokens():
    events = only(decode(stored([7], [0, 0], extra_keys=[[b"digest"]])))
    assert [tuple(extra) for extra in events.extras] == [(0, 0, digest(b"digest"))]


def test_only_full_attention_says_how_far_a_prefix_reaches():
    decoder = VllmEvents()
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    assert decode(stored([7], [1, 2], **window), removed([7], group_idx=1), decoder=decoder) == []
    for kind in ("full_attention", "mla_attention", "sink_full_attention", None):
        events = only(decode(stored([7], [1, 2], group_idx=0, kv_cache_spec_kind=kind), decoder=decoder))
        assert events.hashes.tolist() == [7]
    assert only(decode(removed([7]), removed([8], group_idx=1), decoder=decoder)).hashes.tolist() == [7]


@pytest.mark.parametrize(
    "event",
    [
        stored([7], [], size=0),
        stored([7, 8], [1, 2, 3]),
        stored([], []),
        stored([7], [1, 2], medium="CPU"),
        stored([7], [1, 2], medium="STORAGE"),
        removed([7], medium="CPU"),
        removed([]),
    ],
)
def test_placeholders_and_other_tiers_are_left_out(event):
    assert decode(event) == []


def test_all_blocks_cleared_keeps_its_place():
    before, cleared, after = decode(stored([7], [1, 2]), {"type": "AllBlocksCleared"}, stored([8], [3, 4]))
    assert isinstance(before, BlockEvents)
    assert cleared == Cleared((Tier.GPU,))
    assert isinstance(after, BlockEvents)
    assert after.hashes.tolist() == [8]


def test_long_events_are_cut_and_short_ones_joined():
    count = 2 * SLICE_BLOCKS + 10
    keys: list[object] = [None] * count
    keys[SLICE_BLOCKS + 3] = [["cat", 1]]
    hashes = list(range(1, count + 1))
    decoder = VllmEvents()
    for event in (
        stored(hashes, list(range(2 * count)), extra_keys=keys),
        stored([5000], [1, 2], parent=count),
    ):
        decoder.feed(msgspec.msgpack.encode([1.5, [event], 0]))
    changes = [change for change in decoder.take() if isinstance(change, BlockEvents)]
    assert [len(change.hashes) for change in changes] == [SLICE_BLOCKS, SLICE_BLOCKS, 11]
    assert [change.parents.tolist() for change in changes] == [[0], [SLICE_BLOCKS], [2 * SLICE_BLOCKS, count]]
    assert [tuple(extra) for change in changes for extra in change.extras] == [(3, 1, digest("cat"))]
    starts = [change.tokens[0].tolist() for change in changes]
    assert starts == [
        [0, 1],
        [2 * SLICE_BLOCKS, 2 * SLICE_BLOCKS + 1],
        [4 * SLICE_BLOCKS, 4 * SLICE_BLOCKS + 1],
    ]


def test_blocks_of_several_sizes_come_in_batches_of_their_own():
    sizes = [
        change.block_tokens
        for change in decode(stored([1], [1, 2]), removed([9]), stored([2], [1, 2, 3], size=3), removed([1]))
        if isinstance(change, BlockEvents)
    ]
    assert sizes == [2, 3]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"ts": 1}),
        msgspec.msgpack.encode([1.5, [{"type": "BlockTeleported"}], 0]),
        msgspec.msgpack.encode([1.5, [stored([7], [-1, 2])], 0]),
        msgspec.msgpack.encode([1.5, [stored([-7], [1, 2])], 0]),
        msgspec.msgpack.encode([1.5, [stored([7], [1, 2**40])], 0]),
        msgspec.msgpack.encode([1.5, [stored([7], [1, 2], extra_keys=[[["cat", 1, 2]]])], 0]),
        msgspec.msgpack.encode([1.5, [stored([7], [1, 2], extra_keys=[[["cat", 2]]])], 0]),
        msgspec.msgpack.encode([1.5, [stored([7], [1, 2], extra_keys=[None, [["cat", 1]]])], 0]),
        msgspec.msgpack.encode([1.5, [stored([7], [1, 2], parent=-1)], 0]),
        msgspec.msgpack.encode([1.5, [stored([7, b"x" * 32], [1, 2, 3, 4])], 0]),
        msgspec.msgpack.encode([1.5, [stored([b"x" * 32, 7], [1, 2, 3, 4])], 0]),
        msgspec.msgpack.encode([1.5, [removed([7, b"x" * 32])], 0]),
        msgspec.msgpack.encode([1.5, [removed([b"x" * 32, 7])], 0]),
        msgspec.msgpack.encode([1.5, [], 0])[:-1] + DEEP,
        msgspec.msgpack.encode([1.5, [stored([7], [1, 2], extra_keys=["NEST"])], 0]).replace(
            b"\xa4NEST", DEEP
        ),
    ],
)
def test_what_vllm_never_sends_is_refused_whole(payload):
    decoder = VllmEvents()
    with pytest.raises(EventsInvalid):
        decoder.feed(payload)
    assert decoder.take() == []
    assert only(decode(stored([8], [1, 2]), decoder=decoder)).hashes.tolist() == [8]


def test_the_time_of_publishing_is_read_without_the_rest():
    decoder = VllmEvents()
    assert decoder.published(msgspec.msgpack.encode([1.5, [{"type": "BlockTeleported"}], 0])) == 1.5
    for payload in (b"\xc1", b"\x92" + DEEP, msgspec.msgpack.encode([1.5, 0])[:-1] + DEEP):
        with pytest.raises(EventsInvalid):
            decoder.published(payload)


def test_a_refusal_does_not_quote_what_was_sent():
    with pytest.raises(EventsInvalid) as refused:
        decode(stored([7], [123456, 2**40]))
    assert "OverflowError" in str(refused.value)
    assert str(2**40) not in str(refused.value)


@pytest.mark.parametrize("recording", ["int", "bytes"])
def test_recorded_vllm_predicts_the_cached_tokens_it_reported(recording):
    """A real vLLM 0.32 with 17 blocks of 32 tokens: a salt, an eviction, a reset, and (int) a restart.

    Before each request the index says how much of it is cached; vLLM has reported how much was.
    """
    said = json.loads((DATA / f"vllm-{recording}.json").read_text())
    frames = [(sequence, bytes.fromhex(payload)) for sequence, payload in said["frames"]]
    index, decoder = Index(blocks=4096), VllmEvents()
    index.attach(RANK)
    applied, last = 0, -1
    for request in said["requests"]:
        prompt = PrefixKeys(request["ids"], seed(None, request.get("cache_salt")))
        if applied < request["after"] and frames[applied][0] <= last:  # the engine was restarted before
            index.push(RANK, [Cleared((Tier.GPU, Tier.HOST))])
            while index.work(0.0):
                pass
            last = -1
        predicted = int(index.match(prompt).leading()[0])
        behind_our_back = request.get("after_reset", False)  # its event comes with the next request's
        assert (predicted == request["cached"]) != behind_our_back
        for sequence, payload in frames[applied : request["after"]]:
            decoder.feed(payload)
            index.push(RANK, decoder.take())
            last = sequence
        applied = request["after"]
        while index.work(0.0):
            pass
    assert index.state().orphans == 0


def test_an_image_of_an_event_meets_the_image_of_a_prompt():
    index = Index(blocks=4096)
    index.attach(RANK)
    keys = [["x", ["cat", 1]], ["x", ["cat", -1]]]
    index.push(RANK, decode(stored([7, 8], [1, 2, 3, 4], lora_name="x", extra_keys=keys)))
    while index.work(0.0):
        pass
    cat = PrefixKeys([1, 2, 3, 4, 5], seed("x"), [Extra(1, digest("cat"))])
    assert int(index.match(cat).leading()[0]) == 4
    assert int(index.match(PrefixKeys([1, 2, 3, 4, 5], seed("x"))).leading()[0]) == 0
