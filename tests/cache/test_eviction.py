import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cache.eviction import Lru

CAPACITY = 24


def filled(ranks: list[tuple[int, int]]) -> Lru:
    lru = Lru(CAPACITY)
    for slot, (used, end) in enumerate(ranks):
        lru.enter(slot, end, used)
    return lru


def everything(count: int) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    return np.arange(CAPACITY) < count


def test_last_use_first_then_the_larger_end() -> None:
    lru = filled([(5, 16), (5, 32), (3, 16), (5, 48), (3, 32)])
    assert lru.victims(5, everything(5)) == [4, 2, 3, 1, 0]


def test_a_touch_keeps_the_order_within_its_call() -> None:
    lru = filled([(1, 16), (1, 32), (1, 48)])
    lru.touch([0, 1], 9)
    assert lru.victims(3, everything(3)) == [2, 1, 0]


def test_an_older_touch_does_not_make_a_page_colder() -> None:
    lru = filled([(9, 16), (5, 16)])
    lru.touch([0], 3)
    assert lru.victims(1, everything(2)) == [1]


def test_only_the_coldest_share() -> None:
    lru = filled([(slot + 1, 16) for slot in range(10)])
    assert lru.victims(10, everything(10), share=0.5) == [0, 1, 2, 3, 4]
    assert lru.victims(10, everything(10), share=0.01) == []


def test_what_is_held_is_passed_over_and_comes_back_in_its_place() -> None:
    lru, evictable = filled([(slot + 1, 16) for slot in range(6)]), everything(6)
    evictable[0] = False
    assert lru.victims(1, evictable) == [1]
    lru.leave([1])
    evictable[0], evictable[1] = True, False
    lru.allow([0])
    assert lru.victims(2, evictable) == [0, 2]


def test_very_long_prompts_are_ordered_by_use_alone() -> None:
    lru = filled([(2, 2**30), (1, 16)])
    assert lru.victims(2, everything(2)) == [1, 0]


@given(
    st.lists(st.tuples(st.integers(0, 2**40 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=CAPACITY)
)
def test_what_a_restart_recalls_is_ordered_as_what_entered(ranks: list[tuple[int, int]]) -> None:
    used, ends = (np.array(column, np.uint64) for column in zip(*ranks, strict=True))
    recalled = Lru(CAPACITY)
    recalled.recall(np.arange(len(ranks)), ends.astype(np.uint32), used)
    assert recalled._rank.tolist() == filled(ranks)._rank.tolist()


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 50)), min_size=1, max_size=CAPACITY),
    st.lists(st.tuples(st.integers(0, CAPACITY - 1), st.booleans()), max_size=30),
)
def test_always_the_same_as_a_sorted_list(
    ranks: list[tuple[int, int]], actions: list[tuple[int, bool]]
) -> None:
    lru, model, clock = filled(ranks), dict(enumerate(ranks)), 20
    evictable = everything(len(ranks))
    for slot, touch in actions:
        clock += 1
        if touch and slot in model:
            lru.touch([slot], clock)
            model[slot] = (clock, model[slot][1])
        elif model:
            (victim,) = lru.victims(1, evictable)
            assert model[victim] == min(model.values(), key=lambda rank: (rank[0], -rank[1]))
            lru.leave([victim])
            evictable[victim] = False
            del model[victim]


def test_of_many_pages_the_coldest_go_first_and_all_in_the_end() -> None:
    count, chance = 1 << 17, np.random.default_rng(0)
    lru, evictable = Lru(count), chance.random(count) < 0.7
    ends, used = chance.integers(1, 1 << 12, count), chance.integers(1, 1 << 20, count)
    lru.recall(np.arange(count), ends.astype(np.uint32), used.astype(np.uint64))
    order = sorted(np.flatnonzero(evictable).tolist(), key=lambda slot: int(lru._rank[slot]))
    assert [int(lru._rank[s]) for s in lru.victims(3000, evictable)] == [
        int(lru._rank[s]) for s in order[:3000]
    ]
    rest = lru.victims(count, evictable)
    assert set(rest) | set(order[:3000]) == set(order)
