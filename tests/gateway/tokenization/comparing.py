"""Any chat, as we read it and as an engine's own code does."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings

from gateway.tokenization import Endpoint, EngineRefused, ModelTokenizer, Reason, Unknown
from tests.gateway.tokenization.bodies import CHATS
from tests.gateway.tokenization.driving import now

Engine = Callable[[dict[str, Any]], list[int]]
"""A chat's ids by the engine's own code. Raises EngineRefused."""


def compare(model: ModelTokenizer, engine: Engine, examples: int) -> Counter[str]:
    """Compare so many chats. What comes of them: "equal", "refused" by the engine, or "unknown" to us."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(CHATS)
    def compare_one(body: dict[str, Any]) -> None:
        outcomes[_outcome(model, engine, body)] += 1

    compare_one()
    return outcomes


def _outcome(model: ModelTokenizer, engine: Engine, body: dict[str, Any]) -> str:
    answer = now(model.tokens(Endpoint.CHAT, body))
    try:
        engines = engine(body)
    except EngineRefused:
        return "refused"
    if isinstance(answer, Unknown):
        assert answer.reason is Reason.SHAPE, answer
        return "unknown"
    assert answer.ids.tolist() == engines
    return "equal"
