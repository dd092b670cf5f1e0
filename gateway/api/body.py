"""Reading a request's body: within its limit, parsed, and with the options that we add spliced in."""

from typing import Any, NamedTuple

import orjson

from gateway.api.endpoints import Endpoint
from gateway.errors import BodyTooLarge, InvalidRequest
from gateway.exchange import Receive


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
    fields = load(raw)
    endpoint.check(fields)
    return Body(raw, fields)


def load(raw: bytes) -> dict[str, Any]:
    """Parse a body of whatever endpoint.

    Raises:
        InvalidRequest: malformed JSON, with the place.
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
