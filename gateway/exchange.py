"""One request's way through the gateway, and the outermost ASGI layer that gives each request its own.

The layer answers every failure in OpenAI's envelope, puts `x-request-id` on every answer, and writes one log
line and the metrics at the end.
"""

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from gateway.errors import AnswerBroken, GatewayError, Internal
from gateway.routing import Candidate
from gateway.telemetry.metrics import GatewayMetrics
from gateway.usage import Usage

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]

STORED_PREFIX = "/v1/responses/"

_SAFE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Exchange:
    """What is known of a request, and the way to answer it.

    Attributes:
        status: of the answer as sent; 0 before; 499 when the client left first.
        first_chunk_at: `time.perf_counter()` when the replica's first chunk came; 0.0 before.
        chosen: the replica that the request went to, as it was seen when it was chosen.
        owner: who asks, as `Access.check_api` tells it.
        usage: the replica's account of tokens, where it gave one.
    """

    __slots__ = (
        "_send",
        "chosen",
        "endpoint",
        "first_chunk_at",
        "model",
        "owner",
        "request_id",
        "started",
        "status",
        "usage",
    )

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self.request_id = _request_id(scope["headers"])
        self.started = time.perf_counter()
        self.status = 0
        self.first_chunk_at = 0.0
        self.endpoint = ""
        self.model = ""
        self.owner = ""
        self.chosen: Candidate | None = None
        self.usage: Usage | None = None

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send status and headers."""
        self.status = status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, (b"x-request-id", self.request_id)],
            }
        )

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def fail(self, error: GatewayError) -> None:
        """Answer with an error, unless an answer has begun."""
        if not self.status:
            body = error.envelope()
            await self.start(error.status, [*error.answer_headers(), (b"content-length", b"%d" % len(body))])
            await self.write(body, more=False)

    async def send(self, message: Message) -> None:
        """ASGI's send, for parts of the application that answer through a framework."""
        if message["type"] == "http.response.start":
            await self.start(message["status"], message.get("headers", ()))
        else:
            await self._send(message)


def _request_id(headers: RawHeaders) -> bytes:
    for name, value in headers:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex.encode()


class Front:
    """The outermost ASGI layer.

    Args:
        app: answers all paths that `generation` doesn't have.
        generation: path → application for the hot paths, which no framework slows down.
        stored: answers the paths of stored responses, with the same machinery.
    """

    def __init__(
        self,
        app: App,
        generation: Mapping[str, App],
        stored: App,
        metrics: GatewayMetrics,
        *,
        log_requests: bool,
    ) -> None:
        self._app = app
        self._generation = generation
        self._stored = stored
        self._metrics = metrics
        self._log_requests = log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, send)
        scope["exchange"] = exchange
        try:
            path: str = scope["path"]
            app = self._generation.get(path)
            if app is None:
                app = self._stored if path.startswith(STORED_PREFIX) else self._app
            await app(scope, receive, exchange.send)
        except GatewayError as error:
            await exchange.fail(error)
        except AnswerBroken:
            pass  # returning with the answer unfinished makes the server close the connection
        except Exception:
            log.exception("unexpected error", extra={"request_id": exchange.request_id.decode()})
            await exchange.fail(Internal())
        finally:
            self._end(scope, exchange)

    def _end(self, scope: Scope, exchange: Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        if exchange.endpoint:
            self._metrics.observe(exchange, seconds)
        if self._log_requests and log.isEnabledFor(logging.INFO):
            log.info("request", extra=_summary(scope, exchange, seconds))


def _summary(scope: Scope, exchange: Exchange, seconds: float) -> dict[str, Any]:
    # The path without its query: a query may hold a key.
    summary: dict[str, Any] = {
        "request_id": exchange.request_id.decode(),
        "method": scope["method"],
        "path": scope["path"],
        "status": exchange.status,
        "seconds": round(seconds, 6),
    }
    if exchange.chosen is not None:
        summary["model"] = exchange.model
        summary["replica"] = exchange.chosen.replica.name
        summary["predicted_tokens"] = sum(exchange.chosen.cached)
    if exchange.first_chunk_at:
        summary["first_chunk_seconds"] = round(exchange.first_chunk_at - exchange.started, 6)
    if exchange.usage is not None:
        summary["prompt_tokens"] = exchange.usage.prompt_tokens
        summary["cached_tokens"] = exchange.usage.cached_tokens
        summary["completion_tokens"] = exchange.usage.completion_tokens
    return summary
