from collections import Counter
from typing import cast

import pytest

from engine_adapters.base import Engine, Load
from gateway.fleet import Replica
from gateway.routing import Passage, Prompt, RequestContext, Router, create_policy

REQUEST = RequestContext("id", "/v1/chat/completions", "m", {}, Prompt(100))


@pytest.fixture
def replicas() -> list[Replica]:
    return [Replica(name, cast(Engine, None)) for name in "abc"]


def pick(router: Router, replicas: list[Replica]) -> Replica:
    return router.decide(REQUEST, replicas, {}).chosen.replica


def test_round_robin_ignores_load(replicas: list[Replica]) -> None:
    router = Router(create_policy("round_robin"))
    replicas[0].charge()
    picks = Counter(pick(router, replicas).name for _ in range(9))
    assert picks == {"a": 3, "b": 3, "c": 3}


async def test_least_loaded_levels_what_it_charges(replicas: list[Replica]) -> None:
    router = Router(create_policy("least_loaded"))
    for _ in range(9):
        Passage(router.decide(REQUEST, replicas, {}).chosen, streamed=True)
    assert [replica.requests for replica in replicas] == [3, 3, 3]


def test_least_loaded_sees_other_clients_load(replicas: list[Replica]) -> None:
    router = Router(create_policy("least_loaded"))
    for replica in replicas[:2]:
        replica.sample(Load(running=5, waiting=0, kv_usage=0))
    assert pick(router, replicas) is replicas[2]


def test_equals_take_turns(replicas: list[Replica]) -> None:
    router = Router(create_policy("least_loaded"))
    assert {pick(router, replicas).name for _ in range(3)} == {"a", "b", "c"}
