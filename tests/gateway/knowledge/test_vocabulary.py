from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.knowledge.vocabulary import check_ids


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", [1, 100]),
        ("prompt", [-1]),
        ("prompt", [[1], [2, 100]]),
        ("input", [100]),
        ("input_ids", [7, 2**70]),
        ("query", [100]),
        ("items", [[1], [100]]),
        ("stop_token_ids", [100]),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="from 0 to 99") as refused:
        check_ids({field: value}, 100)
    assert refused.value.param == field


@pytest.mark.parametrize(
    "value",
    ["text", ["text", "text"], [], [[]], [0, 99], [[0], [99]], [1, "x"], [2.5], [True], None, {"a": 1}],
)
def test_all_else_is_left_to_the_engine(value: Any) -> None:
    check_ids({"prompt": value, "input": value}, 100)
