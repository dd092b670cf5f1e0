from typing import cast

import pytest

from engine_adapters.base import Engine
from gateway.fleet import Replica
from gateway.routing import Prompt, RequestContext, create_policy, decide

REQUEST = RequestContext("id", "/v1/chat/completions", "m", {}, Prompt(1000))


@pytest.mark.parametrize(
    ("held", "prefill"),
    [((0, 0, 0, 0), 1000), ((300, 0, 0, 0), 700), ((100, 600, 0, 0), 300), ((400, 600, 0, 0), 1)],
)
def test_what_the_engine_has_in_gpu_and_host_is_not_computed(
    held: tuple[int, int, int, int], prefill: int
) -> None:
    replicas = [Replica(name, cast(Engine, None)) for name in "ab"]
    decision = decide(create_policy("ttft"), REQUEST, replicas, {"b": held})
    assert [candidate.prefill_tokens for candidate in decision.candidates] == [1000, prefill]
