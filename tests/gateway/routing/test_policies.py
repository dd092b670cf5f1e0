from collections import Counter
from typing import cast

import pytest

from engine_adapters.base import Engine, Load
from gateway.fleet import Replica
from gateway.routing import Passage, Policy, Prompt, RequestContext, create_policy, decide

REQUEST = RequestContext("id", "/v1/chat/completions", "m", {}, Prompt(100))


@pytest.fixture
def three() -> list[Replica]:
    return [Replica(name, cast(Engine, None)) for name in "abc"]


def pick(policy: Policy, three: list[Replica]) -> Replica:
    return decide(policy, REQUEST, three, {}).chosen.replica


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


def test_equals_take_turns(three: list[Replica]) -> None:
    policy = create_policy("least_loaded")
    assert {pick(policy, three).name for _ in range(3)} == {"a", "b", "c"}
