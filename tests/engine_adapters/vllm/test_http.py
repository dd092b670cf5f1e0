from typing import Any, cast

import orjson
import pytest

from engine_adapters.base import Address, Refusal
from engine_adapters.http import Connection
from engine_adapters.vllm.http import VllmEngine

ENGINE = VllmEngine(Address(cast(Connection, None)))


@pytest.mark.parametrize(
    ("status", "body", "refusal"),
    [
        (
            400,
            {"error": {"message": "too hot", "type": "BadRequestError", "param": "temperature", "code": 400}},
            Refusal("too hot", "invalid_request_error", "temperature", None),
        ),
        (
            400,
            {"error": {"message": "This model's maximum context length is 8 tokens.", "code": 400}},
            Refusal(
                "This model's maximum context length is 8 tokens.",
                "invalid_request_error",
                None,
                "context_length_exceeded",
            ),
        ),
        (
            400,
            {"error": {"message": "[{'type': 'int', 'loc': ('body', 'n'), 'msg': 'no'}]"}},
            Refusal(
                "[{'type': 'int', 'loc': ('body', 'n'), 'msg': 'no'}]", "invalid_request_error", "n", None
            ),
        ),
        (
            404,
            {"object": "error", "message": "The model `x` does not exist.", "code": 404},
            Refusal("The model `x` does not exist.", "not_found_error", None, "model_not_found"),
        ),
        (404, {"detail": "Not Found"}, Refusal("Not Found", "not_found_error", None, None)),
        (
            429,
            {"error": {"message": "slow down"}},
            Refusal("slow down", "rate_limit_exceeded", None, "rate_limit_exceeded"),
        ),
        (500, None, Refusal("the engine answered 500", "server_error", None, None)),
        (500, [1], Refusal("the engine answered 500", "server_error", None, None)),
    ],
)
def test_every_shape_of_error_is_read(status: int, body: Any, refusal: Refusal) -> None:
    assert ENGINE.refusal(status, orjson.dumps(body)) == refusal


def test_what_is_not_json_is_an_error_too() -> None:
    page = b"<html>\n  bad   gateway\xff </html>"
    assert ENGINE.refusal(502, page).message == "the engine answered 502: <html> bad gateway\ufffd </html>"
    assert ENGINE.refusal(500, b'"said so"').message == "the engine answered 500: said so"
    for empty in (b"", b" \n", b"null", b"[]", b"{}"):
        assert ENGINE.refusal(502, empty).message == "the engine answered 502"


def test_a_long_page_is_cut() -> None:
    message = ENGINE.refusal(500, b"x" * 100_000).message
    assert message.endswith("x \u2026")
    assert len(message) < 600


def test_a_rank_is_named_only_where_there_are_several() -> None:
    connection = cast(Connection, None)
    assert VllmEngine(Address(connection)).headers == []
    assert VllmEngine(Address(connection, rank=1, ranks=2)).headers == [(b"x-data-parallel-rank", b"1")]
    assert VllmEngine(Address(connection, rank=0, ranks=2)).headers == [(b"x-data-parallel-rank", b"0")]
