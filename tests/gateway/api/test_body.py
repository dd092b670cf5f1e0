import orjson
import pytest

from gateway.api.body import ClientLeft, ask_for_usage, parse, read_body
from gateway.api.endpoints import CHAT
from gateway.errors import BodyTooLarge
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
    assert spliced.endswith(b'"seed":12345678901234567890123}'), "numbers stay as they were written"
    assert orjson.loads(spliced)["stream_options"] == {"include_usage": True}


def test_a_request_for_usage_passes_as_it_is() -> None:
    raw = b'{"model":"m","messages":[],"stream_options":{"include_usage":true}}'
    assert ask_for_usage(parse(raw, CHAT)) == (raw, False)
