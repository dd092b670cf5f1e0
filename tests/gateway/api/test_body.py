import asyncio
import json
import threading

import orjson
import pytest

from gateway.api.body import Bodies, Body, ClientLeft, Fields, ask_for_usage
from gateway.errors import BodyTooLarge, InvalidRequest, RequestTooSlow
from gateway.exchange import Message
from gateway.settings import LimitSettings


def bodies(**limits: float) -> Bodies:
    return Bodies(LimitSettings.model_validate(limits))


def parsed(raw: bytes) -> Body:
    return Body(raw, orjson.loads(raw))


def receiver(*parts: bytes) -> "list[Message]":
    last = len(parts) - 1
    return [
        {"type": "http.request", "body": part, "more_body": index < last} for index, part in enumerate(parts)
    ]


async def read(messages: "list[Message]", length: int | None = None, limit: int = 100) -> bytes:
    remaining = iter([*messages, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(remaining)

    return await bodies(body_bytes=limit).read(receive, length)


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


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def receive() -> Message:
        await asyncio.sleep(60)
        raise AssertionError

    with pytest.raises(RequestTooSlow, match=r"0.05 s \(limits.body_s\)"):
        await bodies(body_s=0.05).read(receive, None)


def anything(fields: Fields) -> None:
    pass


BIG = b" " * 200_000


@pytest.mark.parametrize(
    ("held", "limit"),
    [
        (b"[" + b"[]," * 999 + b"[]]", "json_fields"),
        (b"{" + b'"a":1,' * 999 + b'"a":1}', "json_fields"),
        (b"[" + b"1," * 5000 + b"1]", "json_values"),
    ],
)
async def test_a_big_body_that_holds_too_much_is_refused(held: bytes, limit: str) -> None:
    limited = bodies(json_fields=1000, json_values=5000)
    with pytest.raises(BodyTooLarge, match=rf"limits\.{limit}"):
        await limited.parse(b'{"x":%s%s}' % (held, BIG), anything)
    text = orjson.dumps({"x": held.decode()})
    assert await limited.parse(text + BIG, anything) == {"x": held.decode()}, "in a string it is text"
    limited.close()


async def test_a_big_body_is_parsed_and_checked_off_the_loop() -> None:
    threads: list[threading.Thread] = []

    def check(fields: Fields) -> None:
        threads.append(threading.current_thread())
        if "bad" in fields:
            raise InvalidRequest("bad")

    reader = bodies()
    assert await reader.parse(b'{"a":1}' + BIG, check) == {"a": 1}
    assert await reader.parse(b'{"a":1}', check) == {"a": 1}
    assert [thread is threading.main_thread() for thread in threads] == [False, True]
    with pytest.raises(InvalidRequest, match="bad"):
        await reader.parse(b'{"bad":1}' + BIG, check)
    with pytest.raises(InvalidRequest, match="line 1, column"):
        await reader.parse(b'{"a":' + BIG, check)
    reader.close()


@pytest.mark.parametrize("depth", [2000, 200_000])
async def test_a_body_too_deep_is_refused(depth: int) -> None:
    reader = bodies(json_fields=10**6)
    with pytest.raises(InvalidRequest, match="depth limit"):
        await reader.parse(b'{"x":' + b"[" * depth + b"]" * depth + b"}", anything)
    reader.close()


@pytest.mark.parametrize("space", [b"", b" \n\t"])
def test_the_usage_option_is_spliced_in(space: bytes) -> None:
    raw = space + b'{"model":"m","messages":[],"seed":12345678901234567890123}'
    spliced, ours = ask_for_usage(parsed(raw))
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
    spliced, ours = ask_for_usage(parsed(raw))
    assert ours
    assert spliced.startswith(raw[: raw.rindex(b"}")])
    for loads in (orjson.loads, json.loads):
        assert loads(spliced)["stream_options"] == {**others, "include_usage": True}


def test_an_empty_body_takes_the_usage_option() -> None:
    assert ask_for_usage(Body(b"{ }", {})) == (b'{ "stream_options":{"include_usage":true}}', True)


def test_usage_options_too_deep_to_complete_are_refused() -> None:
    raw = b'{"model":"m","messages":[],"stream_options":{"x":%s}}' % (b"[" * 300 + b"]" * 300)
    with pytest.raises(InvalidRequest) as refused:
        ask_for_usage(parsed(raw))
    assert refused.value.param == "stream_options"


def test_a_request_for_usage_passes_as_it_is() -> None:
    raw = b'{"model":"m","messages":[],"stream_options":{"include_usage":true}}'
    assert ask_for_usage(parsed(raw)) == (raw, False)
