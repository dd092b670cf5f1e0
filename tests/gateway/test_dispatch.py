"""What may change between a request's first look at the fleet and its choice."""

from typing import Any, cast

from cache.prefix import PrefixKeys
from engine_adapters.base import Engine, ModelCard
from gateway.dispatch import Dispatcher, Request
from gateway.fleet import Fleet, Replica
from gateway.knowledge import Knowledge
from gateway.routing import Prompt, create_policy
from gateway.settings import ProbeSettings


def card(name: str, length: int) -> ModelCard:
    return ModelCard(name, None, None, length, {})


class Tokenizing:
    """Knowledge that takes a while, in which the first replica unloads what was asked for."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def prompt(self, *_: Any) -> Prompt:
        self._replica.rise([card("base", 100)])
        return Prompt(50, PrefixKeys(range(50), 0))

    def matches(self, *_: Any) -> dict[str, Any]:
        return {}


async def test_a_replica_that_unloads_the_adapter_meanwhile_is_left_out() -> None:
    replicas = [Replica(name, cast(Engine, None)) for name in "abc"]
    for replica, length in zip(replicas, (100, 40, 100), strict=True):
        replica.rise([card("base", length), card("adapter", length)])
    knowledge = cast(Knowledge, Tokenizing(replicas[0]))
    dispatcher = Dispatcher(Fleet(replicas, ProbeSettings()), knowledge, create_policy("ttft"))
    request = Request("r", "/v1/completions", "adapter", {"prompt": "x"}, 50)
    dispatch = await dispatcher.look_up(request)
    assert dispatch.replicas == [replicas[2]]
