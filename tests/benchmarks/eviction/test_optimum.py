"""Belady against every other choice, on traces small enough to try them all."""

import itertools
from collections.abc import Sequence

import pytest

from benchmarks.eviction.optimum import Belady
from benchmarks.eviction.policies import Arc, BlockLru, Ours, S3Fifo, hits
from benchmarks.eviction.trace import Request
from tests.benchmarks.eviction.test_policies import prompts


def most_hits(requests: Sequence[Request], capacity: int) -> int:
    """The most hits by prefix over all ways to keep at most `capacity` blocks after each request."""
    best = {frozenset[int](): 0}
    for request in requests:
        following = dict[frozenset[int], int]()
        for held, found in best.items():
            run = next((at for at, block in enumerate(request) if block not in held), len(request))
            pool = held | set(request)
            for kept in itertools.combinations(sorted(pool), min(capacity, len(pool))):
                key = frozenset(kept)
                following[key] = max(following.get(key, 0), found + run)
        best = following
    return max(best.values())


@pytest.mark.parametrize("capacity", [1, 2, 3, 4])
def test_no_choice_has_more_hits(capacity: int) -> None:
    for seed in range(12):
        requests = prompts(9, seed, branches=2, longest=3)
        assert hits(Belady(capacity, requests), requests) == most_hits(requests, capacity)


def test_a_hand_made_trace() -> None:
    requests = [[1, 2], [3], [1, 2], [3], [1]]
    assert hits(Belady(1, requests), requests) == 2
    assert hits(Belady(2, requests), requests) == 3
    assert hits(Belady(3, requests), requests) == 4


@pytest.mark.parametrize("kind", [Ours, BlockLru, S3Fifo, Arc])
def test_no_policy_passes_it(kind: type) -> None:
    for seed in range(5):
        requests = prompts(400, seed)
        for capacity in (6, 12, 24):
            assert hits(kind(capacity), requests) <= hits(Belady(capacity, requests), requests)


def test_it_never_holds_more_than_fits() -> None:
    requests = prompts(300, seed=7)
    cache = Belady(8, requests)
    for request in requests:
        cache.use(request)
        assert len(list(cache)) <= 8
