"""Reading a request's body: within its limits, parsed, and with the options that we add spliced in."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import orjson

from gateway.api.json_size import json_size
from gateway.errors import BodyTooLarge, InvalidRequest, RequestTooSlow
from gateway.exchange import Receive
from gateway.settings import LimitSettings

Fields = dict[str, Any]

_SMALL_BYTES = 128 << 10
"""A body up to this size takes the parser a millisecond at most, whatever it holds."""


class ClientLeft(Exception):
    """The client closed the connection before its request was whole."""


class Body(NamedTuple):
    """A request's body, as sent and as parsed."""

    raw: bytes
    fields: Fields


class Bodies:
    """Reads bodies within the limits, and parses them without holding up the event loop.

    Big ones are counted and parsed by one thread, one after the other. Parsing holds the interpreter's lock,
    so what keeps the loop going is the count before it: it doesn't hold the lock, and bounds the parsing.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="bodies")

    async def read(self, receive: Receive, content_length: int | None) -> bytes:
        """The whole body. A body in one piece is not copied.

        Raises:
            BodyTooLarge: as soon as it is certain.
            RequestTooSlow, ClientLeft
        """
        seconds = self._limits.body_s
        try:
            async with asyncio.timeout(seconds):
                return await _whole(receive, content_length, self._limits.body_bytes)
        except TimeoutError:
            raise RequestTooSlow("body", "body_s", seconds) from None

    async def parse(self, raw: bytes, check: Callable[[Fields], None]) -> Fields:
        """Parse a body and check its fields.

        Args:
            check: raises what is wrong with them; for a big body, in the parsing thread.

        Raises:
            InvalidRequest: malformed JSON, with the place; or whatever `check` finds.
            BodyTooLarge: more values than the limits allow.
        """
        if len(raw) <= _SMALL_BYTES:
            return _parse(raw, check)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._parser, self._parse_big, raw, check)

    def close(self) -> None:
        """End the parsing thread."""
        self._parser.shutdown(wait=False, cancel_futures=True)

    def _parse_big(self, raw: bytes, check: Callable[[Fields], None]) -> Fields:
        size, limits = json_size(raw), self._limits
        if size.fields > limits.json_fields:
            raise BodyTooLarge(
                f"The body has {size.fields} arrays, objects and named fields; "
                f"the limit is {limits.json_fields} (limits.json_fields)."
            )
        if size.values > limits.json_values:
            raise BodyTooLarge(
                f"The body has {size.values} values; the limit is {limits.json_values} (limits.json_values)."
            )
        return _parse(raw, check)


async def _whole(receive: Receive, content_length: int | None, limit: int) -> bytes:
    if content_length is not None and content_length > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        if part:
            parts.append(part)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the limit of {limit} bytes (limits.body_bytes).")


def _parse(raw: bytes, check: Callable[[Fields], None]) -> Fields:
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            code="invalid_json",
        ) from None
    if type(fields) is not dict:
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    check(fields)
    return fields


def ask_for_usage(body: Body) -> tuple[bytes, bool]:
    """The body to send upstream for a stream, and whether the final usage chunk is ours alone.

    The option is spliced in before the closing brace, where it wins over one that stands earlier: of a name
    given twice, JSON parsers take the last. Serialising anew would cost milliseconds on a large body, could
    change numbers, and fails on deep ones.

    Raises:
        InvalidRequest: `stream_options` that can't be completed.
    """
    options = body.fields.get("stream_options") or {}
    if options.get("include_usage"):
        return body.raw, False
    try:
        completed = orjson.dumps({**options, "include_usage": True})
    except TypeError:
        raise InvalidRequest(
            "'stream_options' is nested too deeply: it takes flags only.", param="stream_options"
        ) from None
    separator = b"," if body.fields else b""
    end = memoryview(body.raw)[: body.raw.rindex(b"}")]
    return b"".join((end, separator, b'"stream_options":', completed, b"}")), True
