"""The HTTP listener: uvicorn's, with limits on what comes before a request is one.

Until a request's headers are complete nobody has looked at its key. So what an unknown client may send, and
how long it may take, is bounded here, in bytes, headers and seconds. The body is bounded by its reader.
"""

import asyncio
import logging
import uuid
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import GatewayError, HeadTooLarge, InvalidRequest, RequestTooSlow
from gateway.settings import LimitSettings

log = logging.getLogger(__name__)


class _Refused(Exception):
    """Ends the parser's work: the answer is known."""


class BoundedProtocol(HttpToolsProtocol):
    """One client connection."""

    limits: ClassVar[LimitSettings]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and owes us a request."""
        super().connection_made(transport)
        self._in_head = False
        self._unheard = 0  # bytes that made no request, header or body yet
        self._refusal: GatewayError | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it is too much or too late."""
        self._unheard += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unheard > self.limits.header_bytes:
            self._refuse(self._too_long())
        elif self._owes_request():
            self._start_clock()

    def on_message_begin(self) -> None:
        """A request's first byte is here."""
        super().on_message_begin()
        self._in_head = True
        self._unheard = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, is complete."""
        if len(self.headers) == self.limits.headers:
            self._refusal = HeadTooLarge(
                f"The request has more headers than the limit of {self.limits.headers} (limits.headers)."
            )
            raise _Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request can be handled; its body may follow."""
        self._in_head = False
        self._unheard = 0
        self._stop_clock()
        if len(self.url) + sum(len(n) + len(v) for n, v in self.headers) > self.limits.header_bytes:
            self._refusal = self._too_long()
            raise _Refused
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._unheard = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Say why the parser stopped."""
        self._refuse(self._refusal or InvalidRequest("The request is not valid HTTP.", code="invalid_http"))

    def _owes_request(self) -> bool:
        """Whether nothing is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _start_clock(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.header_s, self._late)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self._in_head:
            self._refuse(RequestTooSlow("headers", "header_s", self.limits.header_s))
        else:  # nothing was asked
            self.transport.close()

    def _too_long(self) -> HeadTooLarge:
        return HeadTooLarge(
            "The request line and headers are longer than the limit of "
            f"{self.limits.header_bytes} bytes (limits.header_bytes)."
        )

    def _refuse(self, error: GatewayError) -> None:
        """Answer, unless another answer is under way, and close."""
        log.warning("request refused unread", extra={"status": error.status, "reason": error.message})
        if self._owes_request():
            body = error.envelope()
            headers = [
                *self.server_state.default_headers,
                *((name, value) for name, value in error.answer_headers() if name != b"connection"),
                (b"content-length", b"%d" % len(body)),
                (b"x-request-id", uuid.uuid4().hex.encode()),
                (b"connection", b"close"),
            ]
            head = b"".join(b"%s: %s\r\n" % header for header in headers)
            self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)
        self.transport.close()


def listener(limits: LimitSettings) -> type[BoundedProtocol]:
    """The protocol with these limits, for uvicorn to make one a connection."""
    return type("Protocol", (BoundedProtocol,), {"limits": limits})
