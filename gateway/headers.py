"""Which headers pass through: all but hop-by-hop ones, credentials, what steers an engine, and what each side
sets itself."""

from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]

# RFC 9110, 7.6.1, and the older names that proxies still honour.
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# By these a router steers an engine: which rank computes, where KV is fetched from, who goes first.
# A client's word would lead to where nothing of its prefix lies, or have an engine call other hosts.
_OURS_TO_SAY = frozenset(
    (
        b"x-data-parallel-rank",
        b"x-override-bootstrap-host",
        b"x-override-bootstrap-port",
        b"x-override-bootstrap-room",
        b"x-override-conversation-id",
        b"x-override-disagg-prefill-dp-rank",
        b"x-override-priority",
        b"x-override-rid",
        b"x-override-routed-dp-rank",
    )
)
_NOT_UPSTREAM = (
    _HOP_BY_HOP
    | _OURS_TO_SAY
    | {
        b"host",
        b"content-length",  # set anew: the body may gain an option
        b"expect",
        b"accept-encoding",  # answers are read for their usage
        b"authorization",
        b"x-api-key",
        b"cookie",
        b"x-request-id",
    }
)
_NOT_DOWNSTREAM = _HOP_BY_HOP | {
    b"set-cookie",
    b"www-authenticate",
    b"server",
    b"date",
    b"x-request-id",
    b"x-hpkv-replica",
    b"x-hpkv-cached-tokens",
}


class Incoming(NamedTuple):
    """A request's headers, sorted out in one pass."""

    upstream: Headers
    """What the replica gets of them."""
    credential: bytes | None
    """The client's key, from `Authorization: Bearer` or `x-api-key`."""
    content_length: int | None


def sort_request(headers: Headers) -> Incoming:
    """Sort out a client's headers (names in lower case, as ASGI has them)."""
    upstream: Headers = []
    credential: bytes | None = None
    content_length: int | None = None
    named: bytes | None = None
    for header in headers:
        name, value = header
        if name not in _NOT_UPSTREAM:
            upstream.append(header)
        elif name == b"authorization" and value[:7].lower() == b"bearer ":
            credential = value[7:].strip()
        elif name == b"x-api-key" and credential is None:
            credential = value
        elif name == b"content-length" and value.isdigit():
            content_length = int(value)
        elif name == b"connection":
            named = value
    if named is not None:
        upstream = _drop_named(upstream, named)
    return Incoming(upstream, credential, content_length)


def sort_answer(headers: Headers) -> Headers:
    """What the client gets of a replica's headers."""
    kept: Headers = []
    named: bytes | None = None
    for name, value in headers:
        name = name.lower()
        if name not in _NOT_DOWNSTREAM:
            kept.append((name, value))
        elif name == b"connection":
            named = value
    return kept if named is None else _drop_named(kept, named)


def _drop_named(headers: Headers, connection: bytes) -> Headers:
    # `Connection` may name further headers that are meant for the next hop alone.
    names = {name.strip().lower() for name in connection.split(b",")} - {b"close", b"keep-alive"}
    return [header for header in headers if header[0] not in names] if names else headers
