import json

import orjson
import pytest

from gateway.api.body import Body, ClientLeft, ask_for_usage, parse, read_body
from gateway.api.endpoints import CHAT
from gateway.errors import BodyTooLarge, InvalidRequest
from gateway.exchange import Message


def receiver(*parts: bytes) -> "list[Message]":
    last = len(parts) - 1
    return [
        {"type": "http.request", "body": part, "more_body": index < last} for index, part in enumerate(parts)
    ]


async def read(messages: "list[Message]", length: int | None = None, limit: int = 100) -> bytes:
    remaining = iter([*messages, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(remaining)

    return await read_body(receive, length, limit)


async def test_a_body_in_one_piece_is_not_copied() -> None:
    piece = b"x" * 50
    assert await read(receiver(piece)) is piece


async def test_pieces_are_joined() -> None:
    assert await read(receiver(b"a", b"", b"bc")) == b"abc"


async def test_limits_hold_however_the_size_becomes_known() -> None:
    with pytest.raises(BodyTooLarge):
        await read(receiver(b""), length=101)
    with pytest.raises(BodyTooLarge):
        await read(receiver(b"x" * 60, b"x" * 60))
    assert len(await read(receiver(b"x" * 100), length=100)) == 100


async def test_a_client_that_leaves_early() -> None:
    with pytest.raises(ClientLeft):
        await read([{"type": "http.request", "body": b"a", "more_body": True}])


@pytest.mark.parametrize("space", [b"", b" \n\t"])
def test_the_usage_option_is_spliced_in(space: bytes) -> None:
    raw = space + b'{"model":"m","messages":[],"seed":12345678901234567890123}'
    spliced, ours = ask_for_usage(parse(raw, CHAT))
    assert ours
    assert b'"seed":12345678901234567890123,' in spliced, "numbers stay as they were written"
    assert orjson.loads(spliced)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("options", "others"),
    [
        (b"null", {}),
        (b"{}", {}),
        (b'{"include_usage":false,"x":1}', {"x": 1}),
        (b'{"include_usage":null}', {}),
    ],
)
def test_usage_options_are_completed_and_the_rest_of_the_body_stays(
    options: bytes, others: dict[str, int]
) -> None:
    deep = b"[" * 300 + b"]" * 300
    raw = b'{"model":"m","stream_options":%s,"messages":[],"temperature":1e-7,"x":%s }\n' % (options, deep)
    spliced, ours = ask_for_usage(parse(raw, CHAT))
    assert ours
    assert spliced.startswith(raw[: raw.rindex(b"}")])
    for loads in (orjson.loads, json.loads):
        assert loads(spliced)["stream_options"] == {**others, "include_usage": True}


def test_an_empty_body_takes_the_usage_option() -> None:
    assert ask_for_usage(Body(b"{ }", {})) == (b'{ "stream_options":{"include_usage":true}}', True)


def test_usage_options_too_deep_to_complete_are_refused() -> None:
    raw = b'{"model":"m","messages":[],"stream_options":{"x":%s}}' % (b"[" * 300 + b"]" * 300)
    with pytest.raises(InvalidRequest) as refused:
        ask_for_usage(parse(raw, CHAT))
    assert refused.value.param == "stream_options"


def test_a_request_for_usage_passes_as_it_is() -> None:
    raw = b'{"model":"m","messages":[],"stream_options":{"include_usage":true}}'
    assert ask_for_usage(parse(raw, CHAT)) == (raw, False)
