import pytest

from engine_adapters.batches import Batches
from engine_adapters.events import NO_PARENT, SLICE_BLOCKS, BlockEvents, BlockExtra, Cleared, Tier


def sizes(batches: Batches) -> list[int]:
    return [len(change.hashes) for change in batches.take() if isinstance(change, BlockEvents)]


def test_short_events_join_and_long_ones_are_cut() -> None:
    batches = Batches()
    count = SLICE_BLOCKS + 10
    extra = BlockExtra(SLICE_BLOCKS + 3, 1, 5)
    batches.stored(Tier.HOST, NO_PARENT, 4, list(range(1, count + 1)), [0] * 2 * count, 2, [extra])
    batches.removed(Tier.GPU, [7])
    first, second = batches.take()
    assert isinstance(first, BlockEvents)
    assert isinstance(second, BlockEvents)
    assert (len(first.hashes), len(second.hashes)) == (SLICE_BLOCKS, 11)
    assert second.parents.tolist() == [SLICE_BLOCKS, NO_PARENT]
    assert second.tiers.tolist() == [Tier.HOST, Tier.GPU]
    assert second.extras == (BlockExtra(3, 1, 5),)
    assert batches.take() == []


def test_removals_are_cut_too_and_a_clearing_keeps_its_place() -> None:
    batches = Batches()
    batches.removed(Tier.GPU, list(range(2 * SLICE_BLOCKS + 1)))
    assert sizes(batches) == [SLICE_BLOCKS, SLICE_BLOCKS, 1]
    batches.removed(Tier.GPU, [1])
    batches.cleared((Tier.GPU,))
    batches.removed(Tier.GPU, [2])
    assert batches.take()[1] == Cleared((Tier.GPU,))


def test_a_batch_holds_blocks_of_one_size() -> None:
    batches = Batches()
    batches.stored(Tier.GPU, NO_PARENT, 0, [1], [1, 2], 2)
    batches.stored(Tier.GPU, NO_PARENT, 0, [2], [1], 1)
    assert sizes(batches) == [1, 1]


@pytest.mark.parametrize("tokens", [[1, -2], [1, 2**32], [1, "x"]])
def test_a_token_that_is_none_leaves_what_came_before_whole(tokens: list[int]) -> None:
    batches = Batches()
    batches.stored(Tier.GPU, NO_PARENT, 0, [1], [1, 2], 2)
    with pytest.raises((OverflowError, TypeError)):
        batches.stored(Tier.GPU, NO_PARENT, 0, [2], tokens, 2)
    assert sizes(batches) == [1]
