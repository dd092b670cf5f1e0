"""`GET /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`, at the replica that keeps the response."""

import re

from gateway.access import Access
from gateway.api.body import Bodies, ClientLeft
from gateway.api.generation import CLIENT_LEFT, while_connected
from gateway.drain import Drain
from gateway.errors import MethodNotAllowed, NotFound
from gateway.exchange import STORED_PREFIX, Exchange, Receive, Scope, Send
from gateway.forwarding import Forwarder, Upstream
from gateway.headers import sort_request

_PATH = re.compile(re.escape(STORED_PREFIX) + r"([^/]+)(/cancel)?")


class Stored:
    """The ASGI application of all stored responses."""

    def __init__(self, access: Access, drain: Drain, forwarder: Forwarder, bodies: Bodies) -> None:
        self._access = access
        self._drain = drain
        self._forwarder = forwarder
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange: Exchange = scope["exchange"]
        exchange.endpoint = f"{STORED_PREFIX}{{id}}"
        incoming = sort_request(scope["headers"])
        exchange.owner = self._access.check_api(incoming.credential)
        match = _PATH.fullmatch(scope["path"])
        if match is None:
            raise NotFound(f"No such path: {scope['path']}.")
        method = "POST" if match[2] else "GET"
        if scope["method"] != method:
            raise MethodNotAllowed(
                f"Use {method} on {scope['path']}.", headers=((b"allow", method.encode()),)
            )
        try:
            raw = await self._bodies.read(receive, incoming.content_length)
            query = scope["query_string"]
            path = scope["path"] + (f"?{query.decode('latin-1')}" if query else "")
            headers = [*incoming.upstream, (b"x-request-id", exchange.request_id)]
            upstream = Upstream(method, path, headers, raw, streamed=b"stream=true" in query)
            with self._drain.request():
                await while_connected(self._forwarder.forward_stored(match[1], upstream, exchange), receive)
        except ClientLeft:
            exchange.status = exchange.status or CLIENT_LEFT
