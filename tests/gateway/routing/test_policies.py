import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest

from engine_adapters.base import Engine, Load
from gateway.fleet import Replica
from gateway.routing import Held, Passage, Policy, Prompt, RequestContext, create_policy, decide

NOTHING: Mapping[str, Held] = {}
REQUEST = RequestContext("id", "/v1/chat/completions", "m", {}, Prompt(100))


@pytest.fixture
def three() -> list[Replica]:
    return [Replica(name, cast(Engine, None)) for name in "abc"]


def pick(
    policy: Policy,
    three: list[Replica],
    request: RequestContext = REQUEST,
    matches: Mapping[str, Held] = NOTHING,
) -> Replica:
    """Where a request is sent."""
    chosen = decide(policy, request, three, matches).chosen.replica
    policy.chosen()
    return chosen


def test_round_robin_ignores_load(three: list[Replica]) -> None:
    policy = create_policy("round_robin")
    three[0].charge()
    picks = Counter(pick(policy, three).name for _ in range(9))
    assert picks == {"a": 3, "b": 3, "c": 3}


async def test_least_loaded_levels_what_it_charges(three: list[Replica]) -> None:
    policy = create_policy("least_loaded")
    for _ in range(9):
        Passage(decide(policy, REQUEST, three, {}).chosen, streamed=True)
    assert [replica.requests for replica in three] == [3, 3, 3]


def test_least_loaded_sees_other_clients_load(three: list[Replica]) -> None:
    policy = create_policy("least_loaded")
    for replica in three[:2]:
        replica.sample(Load(running=5, waiting=0, kv_usage=0))
    assert pick(policy, three) is three[2]


def test_one_slow_request_does_not_end_a_replicas_traffic(three: list[Replica]) -> None:
    policy = create_policy("ttft")
    now = time.monotonic()
    three[0].speed.observe(31, 0.337, now)  # cold: 92 tokens/s, as it seems
    for _ in range(20):
        three[1].speed.observe(300, 0.3, now)
    assert {pick(policy, three).name for _ in range(6)} == {"a", "b", "c"}


def test_a_slow_replica_is_avoided_and_tried_again_later(three: list[Replica]) -> None:
    policy = create_policy("ttft")
    now = time.monotonic()
    for replica, seconds in ((three[0], 3.0), (three[1], 0.3), (three[2], 0.3)):
        for _ in range(20):
            replica.speed.observe(300, seconds, now)
    assert {pick(policy, three).name for _ in range(6)} == {"b", "c"}
    three[0].speed.observe(300, 3.0, now - 120)
    assert {pick(policy, three).name for _ in range(6)} == {"a", "b", "c"}


@pytest.mark.parametrize("name", ["least_loaded", "round_robin", "ttft"])
def test_equals_take_turns_of_which_explaining_is_none(three: list[Replica], name: str) -> None:
    policy = create_policy(name)
    explained = {decide(policy, REQUEST, three, {}).chosen.replica.name for _ in range(4)}
    assert explained == {"a"}
    assert {pick(policy, three).name for _ in range(3)} == {"a", "b", "c"}


def picks(three: list[Replica], tokens: int, gpu: int) -> set[str]:
    """Where `ttft` sends prompts of so many tokens, of which `a` has `gpu`."""
    policy, request = create_policy("ttft"), replace(REQUEST, prompt=Prompt(tokens))
    return {pick(policy, three, request, {"a": Held((gpu, 0, 0, 0))}).name for _ in range(6)}


def test_a_page_of_a_common_system_prompt_draws_nobody(three: list[Replica]) -> None:
    for rate in (400, 100_000):
        for replica in three:
            for tokens in range(100, 2000, 100):
                replica.speed.observe(tokens, tokens / rate, time.monotonic())
        assert picks(three, 231, 16) == picks(three, 600, 16) == {"a", "b", "c"}
        assert picks(three, 600, 200) == {"a"}
        assert picks(three, 40, 32) == {"a"}, "a short chat goes home"


def test_a_trifle_counts_where_all_have_the_rest(three: list[Replica]) -> None:
    policy, request = create_policy("ttft"), replace(REQUEST, prompt=Prompt(8000))
    matches = {"a": Held((7984, 0, 0, 0)), "b": Held((7968, 0, 0, 0)), "c": Held((7968, 16, 0, 0))}
    assert {pick(policy, three, request, matches).name for _ in range(6)} == {"a"}


def test_of_equals_the_least_loaded_is_chosen(three: list[Replica]) -> None:
    for replica in three[:2]:
        replica.charge()
    assert picks(three, 600, 16) == {"c"}
