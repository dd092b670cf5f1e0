import pytest

from engine_adapters.base import Metrics
from engine_adapters.errors import EngineAnswerInvalid

PAGE = b"""# HELP vllm:num_requests_waiting Number of requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0"} 9.0
plain 1e3
broken{a="b"} x
"""


def test_values_are_found_by_their_whole_name() -> None:
    metrics = Metrics(PAGE)
    assert metrics.values("vllm:num_requests_waiting") == [2.0, 3.0]
    assert metrics.values("plain") == [1000.0]
    assert metrics.values("vllm:num_requests") == []
    assert metrics.values("absent") == []
    assert metrics.values("vllm:num_requests_waiting", b'engine="1"') == [3.0]


def test_a_line_without_a_number_is_an_error() -> None:
    with pytest.raises(EngineAnswerInvalid):
        Metrics(PAGE).values("broken")


def test_what_is_no_finite_number_does_not_count() -> None:
    assert Metrics(b"a NaN\na +Inf\na 2\n").values("a") == [2.0]


def test_the_last_line_needs_no_end() -> None:
    assert Metrics(b"a 1").values("a") == [1.0]
