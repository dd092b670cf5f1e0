"""Reading a request's body: within its limit, parsed, and with the options that we add spliced in."""

from typing import Any, NamedTuple

import orjson

from gateway.api.endpoints import Endpoint
from gateway.errors import BodyTooLarge, InvalidRequest
from gateway.exchange import Receive

_WITH_USAGE = b'{"stream_options":{"include_usage":true},'


class ClientLeft(Exception):
    """The client closed the connection before its request was whole."""


class Body(NamedTuple):
    """A request's body, as sent and as parsed."""

    raw: bytes
    fields: dict[str, Any]


async def read_body(receive: Receive, content_length: int | None, limit: int) -> bytes:
    """The whole body. A body in one piece is not copied.

    Raises:
        BodyTooLarge: as soon as it is certain.
        ClientLeft
    """
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


def parse(raw: bytes, endpoint: Endpoint) -> Body:
    """Parse and check a body.

    Raises:
        InvalidRequest: malformed JSON, with the place; or a field of a wrong type, with its name.
    """
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            code="invalid_json",
        ) from None
    if type(fields) is not dict:
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    endpoint.check(fields)
    return Body(raw, fields)


def ask_for_usage(body: Body) -> tuple[bytes, bool]:
    """The body to send upstream for a stream, and whether the final usage chunk is ours alone.

    The option is spliced in behind the opening brace: serialising anew would cost milliseconds on a large
    body and could change numbers.
    """
    options = body.fields.get("stream_options")
    if options is None and "stream_options" not in body.fields:
        at = body.raw.index(b"{") + 1
        return b"".join((_WITH_USAGE, memoryview(body.raw)[at:])), True
    if options is not None and options.get("include_usage"):
        return body.raw, False
    fields = {**body.fields, "stream_options": {**(options or {}), "include_usage": True}}
    return orjson.dumps(fields), True
