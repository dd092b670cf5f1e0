"""The endpoints that replicas answer: check the request, forward it, and stop when the client leaves.

A plain ASGI application each: a framework's request and response objects would cost more than all the rest.
"""

import asyncio
from collections.abc import Coroutine

from gateway.access import Access
from gateway.api.body import Bodies, Body, ClientLeft, ask_for_usage
from gateway.api.endpoints import Endpoint
from gateway.dispatch import Request
from gateway.drain import Drain
from gateway.errors import MethodNotAllowed
from gateway.exchange import Exchange, Message, Receive, Scope, Send
from gateway.forwarding import Forwarder, Upstream
from gateway.headers import Headers, Incoming, sort_request

CLIENT_LEFT = 499
"""Logged and counted as the status where the client left before an answer (nginx's number for it)."""


class Generation:
    """One endpoint's ASGI application."""

    def __init__(
        self, endpoint: Endpoint, access: Access, drain: Drain, forwarder: Forwarder, bodies: Bodies
    ) -> None:
        self._endpoint = endpoint
        self._access = access
        self._drain = drain
        self._forwarder = forwarder
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange: Exchange = scope["exchange"]
        exchange.endpoint = self._endpoint.path
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"Use POST on {scope['path']}.", headers=((b"allow", b"POST"),))
        incoming = sort_request(scope["headers"])
        exchange.owner = self._access.check_api(incoming.credential)
        try:
            # A body that comes slowly is not yet a request that anyone waits for.
            raw = await self._bodies.read(receive, incoming.content_length)
            with self._drain.request():
                await self._answer(raw, incoming, scope, receive, exchange)
        except ClientLeft:
            exchange.status = exchange.status or CLIENT_LEFT

    async def _answer(
        self, raw: bytes, incoming: Incoming, scope: Scope, receive: Receive, exchange: Exchange
    ) -> None:
        body = Body(raw, await self._bodies.parse(raw, self._endpoint.check))
        request = Request(
            exchange.request_id.decode(), self._endpoint.path, body.fields["model"], body.fields, len(raw)
        )
        upstream = self._upstream(body, incoming.upstream, scope["query_string"], exchange)
        await while_connected(self._forwarder.forward(request, upstream, exchange), receive)

    def _upstream(self, body: Body, headers: Headers, query: bytes, exchange: Exchange) -> Upstream:
        raw, drop_usage = body.raw, False
        streamed = body.fields.get("stream") is True
        if self._endpoint.usage_option and streamed:
            raw, drop_usage = ask_for_usage(body)
        path = self._endpoint.path
        if query:
            path = f"{path}?{query.decode('latin-1')}"
        headers.append((b"x-request-id", exchange.request_id))
        return Upstream("POST", path, headers, raw, streamed, drop_usage)


async def while_connected(forwarding: Coroutine[None, None, None], receive: Receive) -> None:
    """Await the answer; cancel it when the client leaves, which frees the engine.

    Raises:
        ClientLeft
    """
    task = asyncio.current_task()
    assert task is not None
    watch = asyncio.create_task(_message(receive))
    left = False

    def disconnected(watch: asyncio.Task[Message]) -> None:
        nonlocal left
        if not watch.cancelled():
            left = True
            task.cancel()

    watch.add_done_callback(disconnected)
    try:
        await forwarding
    except asyncio.CancelledError:
        if not left:
            raise
        task.uncancel()
        raise ClientLeft from None
    finally:
        watch.remove_done_callback(disconnected)
        watch.cancel()


async def _message(receive: Receive) -> Message:
    return await receive()
