"""The simulated caches, on traces small enough to follow by hand, and against a plain model of each rule."""

import random
from collections.abc import Iterator

import pytest

from benchmarks.eviction.policies import Arc, BlockLru, Cache, Ours, S3Fifo, hits
from benchmarks.eviction.trace import Request

KINDS = [Ours, BlockLru, S3Fifo, Arc]


def prompts(count: int, seed: int, branches: int = 3, longest: int = 5) -> list[Request]:
    """Random prompts over one tree of prefixes: a block's number names its whole prefix."""
    source, names = random.Random(seed), dict[tuple[int, ...], int]()
    made = []
    for _ in range(count):
        path = [source.randrange(branches) for _ in range(source.randint(1, longest))]
        prefixes = [tuple(path[: end + 1]) for end in range(len(path))]
        made.append([names.setdefault(prefix, len(names)) for prefix in prefixes])
    return made


class PlainModel(Cache):
    """Our rule, word for word: last request first to go, and within one the page nearest the prompt's end."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.rank: dict[int, tuple[int, int]] = {}
        self.stamp = 0

    def __contains__(self, block: int) -> bool:
        return block in self.rank

    def __iter__(self) -> Iterator[int]:
        return iter(self.rank)

    def use(self, request: Request) -> None:
        self.stamp += 1
        self.rank |= {block: (self.stamp, -depth) for depth, block in enumerate(request)}
        for block in sorted(self.rank, key=lambda block: self.rank[block])[: -self.capacity]:
            del self.rank[block]


def test_hits_are_the_leading_run() -> None:
    cache = BlockLru(3)
    cache.use([1, 2, 3])
    assert hits(cache, [[1, 2, 4]]) == 2
    assert set(cache) == {1, 2, 4}
    assert hits(cache, [[3, 1, 2]]) == 0, "a block behind a missing one can't be used"


@pytest.mark.parametrize("capacity", [6, 9, 17, 40])
def test_ours_is_the_plain_rule(capacity: int) -> None:
    ours, model = Ours(capacity), PlainModel(capacity)
    for request in prompts(600, seed=capacity):
        assert hits(ours, [request]) == hits(model, [request])
        assert set(ours) == set(model)


def test_ours_keeps_what_fits_of_a_prompt_larger_than_the_cache() -> None:
    cache = Ours(3)
    cache.use([9])
    cache.use([1, 2, 3, 4, 5])
    assert set(cache) == {1, 2, 3}


def test_ours_lets_a_prefix_outlive_what_extends_it() -> None:
    ours, textbook = Ours(4), BlockLru(4)
    trace = [[1, 2, 3], [4, 5], [1, 2, 3]]
    assert hits(ours, trace) == 2
    assert hits(textbook, trace) == 0, "read from the start, the start leaves first"


@pytest.mark.parametrize("kind", KINDS)
def test_no_cache_outgrows_its_capacity(kind: type[Cache]) -> None:
    for capacity in (5, 11, 30):
        cache = kind(capacity)
        for request in prompts(400, seed=1):
            cache.use(request)
            assert len(set(cache)) == len(list(cache)) <= capacity
        assert len(list(cache)) == capacity


@pytest.mark.parametrize("kind", KINDS)
def test_with_room_for_all_every_second_use_hits(kind: type[Cache]) -> None:
    requests = prompts(300, seed=2)
    seen, repeated = set[int](), 0
    for request in requests:
        repeated += sum(block in seen for block in request)
        seen.update(request)
    assert hits(kind(10 * len(seen)), requests) == repeated


def s3(*blocks: int) -> S3Fifo:
    """Room for ten, one of it in the small queue."""
    cache = S3Fifo(10)
    for block in blocks:
        cache.use([block])
    return cache


def test_s3_fifo_drops_what_was_used_once() -> None:
    cache = s3(*range(10), 10)
    assert set(cache) == set(range(1, 11))


def test_s3_fifo_promotes_what_was_used_twice_more() -> None:
    cache = s3(*range(10), 0, 0, 10, *range(11, 30))
    assert 0 in cache
    assert 1 not in cache
    once_more = s3(*range(10), 0, 10)
    assert 0 not in once_more


def test_s3_fifo_takes_what_its_ghost_remembers_into_the_main_queue() -> None:
    cache = s3(*range(10), 10, 0)
    assert 0 in cache
    for block in range(20, 60):
        cache.use([block])
    assert 0 in cache, "one-time blocks pass through the small queue and leave the main one alone"


def test_s3_fifo_gives_used_blocks_of_the_main_queue_another_round() -> None:
    cache = s3(*range(11), *range(10))  # all ten came back from the ghost: main is full, small is empty
    cache.use([0])
    cache.use([11])
    assert 0 in cache
    assert 1 not in cache


def test_arc_keeps_what_was_seen_twice_through_a_scan() -> None:
    cache = Arc(4)
    for block in (1, 2, 1, 2, *range(10, 50)):
        cache.use([block])
    assert {1, 2} <= set(cache)


def test_arc_learns_to_favour_recency() -> None:
    """Blocks that return soon after they left the list of those seen once make that list larger."""
    cache = Arc(4)
    for block in (1, 1, 2, 2, 3, 3, 4, 4):
        cache.use([block])
    for block in (5, 6, 5, 6, 7, 8, 7, 8, 9):
        cache.use([block])
    assert cache._target > 0


def test_arc_remembers_no_more_than_it_holds() -> None:
    cache = Arc(7)
    for request in prompts(500, seed=3):
        cache.use(request)
        assert len(cache._once) + len(cache._once_ghost) <= 7
        lists = (cache._once, cache._twice, cache._once_ghost, cache._twice_ghost)
        assert sum(map(len, lists)) <= 14
        assert len({block for one in lists for block in one}) == sum(map(len, lists))
