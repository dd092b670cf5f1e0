from typing import cast

import pytest

from engine_adapters.agent.client import AgentClient
from engine_adapters.base import Engine
from engine_adapters.events import Tier
from gateway.fleet import Agent, Replica
from gateway.fleet.agent import Economics
from gateway.index import Span
from gateway.routing import Candidate, Held, Passage, Prompt, RequestContext, create_policy, decide
from gateway.usage import Usage

REQUEST = RequestContext("id", "/v1/chat/completions", "m", {}, Prompt(1000))


@pytest.mark.parametrize(
    ("held", "prefill"),
    [((0, 0, 0, 0), 1000), ((300, 0, 0, 0), 700), ((100, 600, 0, 0), 300), ((400, 600, 0, 0), 1)],
)
def test_what_the_engine_has_in_gpu_and_host_is_not_computed(
    held: tuple[int, int, int, int], prefill: int
) -> None:
    replicas = [Replica(name, cast(Engine, None)) for name in "ab"]
    decision = decide(create_policy("ttft"), REQUEST, replicas, {"b": Held(held)})
    assert [candidate.prefill_tokens for candidate in decision.candidates] == [1000, prefill]


def test_loading_takes_time_and_saves_computing() -> None:
    """5,000 tokens/s computed: 1,000 take 0.2 s; loading 800 of them takes 0.4 s, or 0.02."""
    replicas = [Replica(name, cast(Engine, None)) for name in "abc"]
    lie = Held((0, 0, 800, 0), (Span(Tier.SSD, 0, 800),))
    for replica, rate in zip(replicas[1:], (2_000.0, 40_000.0), strict=True):
        replica.agent = Agent(replica.name, cast(AgentClient, None))
        replica.agent.economics = Economics(16, 16, 1_000.0, (0.0, 0.0, rate, 0.0))
    decision = decide(create_policy("ttft"), REQUEST, replicas, dict.fromkeys("abc", lie))
    assert [candidate.load_s for candidate in decision.candidates] == pytest.approx([0, 0.4, 0.02])
    assert [candidate.ttft_s for candidate in decision.candidates] == pytest.approx([0.2, 0.44, 0.06])
    assert [candidate.cached[Tier.SSD] for candidate in decision.candidates] == [0, 800, 800]
    assert decision.chosen.replica.name == "c"


async def test_a_load_is_no_part_of_what_a_replicas_speed_is_learned_from() -> None:
    replica = Replica("a", cast(Engine, None))
    chosen = Candidate(replica, (0, 900, 0, 0), (0, 900, 0, 0), 100, 0.0, 5.0, 0.02, 0.0)
    passage = Passage(chosen, streamed=True)
    passage._started -= 5.1
    passage.first_chunk()
    passage.end(Usage(1000, 900, 1))
    assert 500 < replica.speed.rate < 1001, "100 tokens in a tenth of a second"
