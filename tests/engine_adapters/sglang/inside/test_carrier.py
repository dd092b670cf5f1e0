"""Prefetches in the scheduler: on one rank, and on two that must do the same."""

import pickle
from array import array
from collections.abc import Iterator

import pytest

from cache.tickets import Phase
from engine_adapters.sglang.inside.carrier import Carrier
from engine_adapters.sglang.inside.desk import Desk, Drop, Fetch
from tests.engine_adapters.sglang.inside.fake import PAGE, Cache, CacheRequestHandle, finish, install

TOKENS = array("q", range(1, 4 * PAGE + 1))


@pytest.fixture(autouse=True)
def _sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


class Ranks:
    """The schedulers of an engine: orders go to all of them as SGLang sends requests."""

    def __init__(self, desk: Desk, *caches: Cache) -> None:
        self.caches = caches
        self._desk = desk
        self._carriers = [Carrier(cache, desk if not rank else None) for rank, cache in enumerate(caches)]

    def step(self) -> None:
        orders: list[Fetch | Drop] = self._desk.take()
        for carrier in self._carriers:
            for order in pickle.loads(pickle.dumps(orders)):
                carrier.do(order)
            carrier.tend()

    def forget(self) -> None:
        for cache, carrier in zip(self.caches, self._carriers, strict=True):
            cache.host = cache.locks = 0
            carrier.forget()

    def join(self, request: CacheRequestHandle, tokens: "array[int]", salt: str | None = None) -> set[bool]:
        return {carrier.join(request, tokens, salt) for carrier in self._carriers}

    def stand_in(self, request: CacheRequestHandle) -> set[str]:
        return {carrier.stand_in(request).rid for carrier in self._carriers}

    @property
    def busy(self) -> set[bool]:
        return {carrier.busy for carrier in self._carriers}


def test_pages_come_are_kept_and_let_go(desk: Desk) -> None:
    ranks = Ranks(desk, Cache(stored=len(TOKENS)))
    (cache,) = ranks.caches
    coming = desk.fetch(TOKENS, "salt", 4)
    ranks.step()
    assert ranks.busy == {True}
    next(iter(cache.ongoing_prefetch.values())).operation.completed_tokens = 2 * PAGE
    ranks.step()
    assert (coming.phase, coming.ready) == (Phase.RUNNING, 2)
    finish(ranks.caches)
    ranks.step()
    assert (coming.phase, coming.ready, ranks.busy, cache.locks) == (Phase.DONE, 4, {False}, 1)
    coming.cancel()
    ranks.step()
    assert cache.locks == 0
    assert cache.calls[0] == ("prefetch", "hpkv-prefetch-1", 0, len(TOKENS), None, "salt")


def test_only_what_host_lacks_is_fetched(desk: Desk) -> None:
    ranks = Ranks(desk, Cache(stored=len(TOKENS)))
    (cache,) = ranks.caches
    cache.host = PAGE
    desk.fetch(TOKENS, None, 3)
    ranks.step()
    assert cache.calls == [("prefetch", "hpkv-prefetch-1", 1, 3 * PAGE, "hash of 1", None)]


def test_two_ranks_do_the_same_though_one_of_them_has_less(desk: Desk) -> None:
    ranks = Ranks(desk, Cache(stored=4 * PAGE), Cache(stored=2 * PAGE))
    one, other = desk.fetch(TOKENS, None, 4), desk.fetch(TOKENS[: 3 * PAGE], "salt", 3)
    ranks.step()
    other.cancel()
    ranks.step()
    finish(ranks.caches)
    ranks.step()
    first, second = (cache.calls for cache in ranks.caches)
    assert first == second
    assert [call[0] for call in first] == ["prefetch", "prefetch", "release", "release", "lock"]
    assert (one.phase, one.ready) == (Phase.DONE, 2)
    one.cancel()
    ranks.step()
    assert [cache.locks for cache in ranks.caches] == [0, 0]


def test_no_more_is_kept_than_half_of_host(desk: Desk) -> None:
    ranks = Ranks(desk, Cache(stored=4 * PAGE, host_tokens=7 * PAGE))
    coming = desk.fetch(TOKENS, None, 4)
    ranks.step()
    assert (coming.phase, coming.ready) == (Phase.DONE, 0)
    assert not any(call[0] == "prefetch" for call in ranks.caches[0].calls)


def test_what_is_under_way_will_be_kept_too(desk: Desk) -> None:
    ranks = Ranks(desk, Cache(stored=4 * PAGE, host_tokens=12 * PAGE))
    first, second = desk.fetch(TOKENS, None, 4), desk.fetch(TOKENS, "salt", 4)
    ranks.step()
    assert (first.phase, second.phase, second.ready) == (Phase.RUNNING, Phase.DONE, 0)


@pytest.mark.parametrize("flushed", [False, True])
def test_what_is_let_go_makes_room(desk: Desk, flushed: bool) -> None:
    ranks = Ranks(desk, Cache(stored=4 * PAGE, host_tokens=12 * PAGE))
    first = desk.fetch(TOKENS, None, 4)
    ranks.step()
    finish(ranks.caches)
    ranks.step()
    refused = desk.fetch(TOKENS, "salt", 4)
    ranks.step()
    assert (refused.phase, refused.ready) == (Phase.DONE, 0)
    if flushed:
        ranks.forget()
    else:
        first.cancel()
    another = desk.fetch(TOKENS, "salt", 4)
    ranks.step()
    assert another.phase is Phase.RUNNING


def test_a_prompt_counts_whole(desk: Desk) -> None:
    """What lies in host of it can't go either while what follows is kept."""
    ranks = Ranks(desk, Cache(stored=4 * PAGE, host_tokens=12 * PAGE))
    ranks.caches[0].host = 3 * PAGE
    desk.fetch(TOKENS, None, 1)
    ranks.step()
    finish(ranks.caches)
    desk.fetch(TOKENS[: 3 * PAGE], "salt", 3)
    ranks.step()
    assert [call[:2] for call in ranks.caches[0].calls if call[0] == "prefetch"] == [
        ("prefetch", "hpkv-prefetch-1")
    ]


def test_nothing_comes_to_host_below_pages_that_the_device_alone_has(desk: Desk) -> None:
    ranks = Ranks(desk, Cache(stored=4 * PAGE))
    (cache,) = ranks.caches
    cache.host, cache.device_alone = PAGE, {1}
    coming = desk.fetch(TOKENS, None, 4)
    ranks.step()
    assert (coming.phase, coming.ready) == (Phase.DONE, 0)
    assert not any(call[0] == "prefetch" for call in cache.calls)


def test_an_emptied_cache_has_nothing_to_unlock(desk: Desk) -> None:
    ranks = Ranks(desk, Cache(stored=4 * PAGE))
    coming = desk.fetch(TOKENS, None, 4)
    ranks.step()
    finish(ranks.caches)
    ranks.step()
    ranks.forget()
    assert coming.phase is Phase.CANCELLED, "an equal one must not rely on it"
    coming.cancel()
    ranks.step()
    assert ranks.caches[0].locks == 0


def test_a_request_shares_a_load_that_is_under_way(desk: Desk) -> None:
    ranks, request = Ranks(desk, Cache(stored=4 * PAGE), Cache(stored=4 * PAGE)), CacheRequestHandle("r", 1)
    desk.fetch(TOKENS, "salt", 4)
    ranks.step()
    longer = TOKENS + array("q", [7, 8])
    assert ranks.join(request, longer) == ranks.join(request, TOKENS[:-1], "salt") == {False}
    assert ranks.join(CacheRequestHandle("hpkv-prefetch-9", 0), longer, "salt") == {False}
    assert ranks.stand_in(request) == {"r"}
    assert ranks.join(request, longer, "salt") == {True}
    assert ranks.stand_in(request) == {"hpkv-prefetch-1"}
    finish(ranks.caches)
    assert ranks.stand_in(request) == {"r"}
    ranks.step()
    assert ranks.join(request, longer, "salt") == {False}, "its pages are in host"


def test_a_request_goes_on_if_the_load_that_it_shares_is_called_off(desk: Desk) -> None:
    ranks, request = Ranks(desk, Cache(stored=4 * PAGE)), CacheRequestHandle("r", 1)
    coming = desk.fetch(TOKENS, None, 4)
    ranks.step()
    assert ranks.join(request, TOKENS) == {True}
    coming.cancel()
    ranks.step()
    assert ranks.stand_in(request) == {"r"}
