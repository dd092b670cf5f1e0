"""HTTP to engines: one pooled transport for all replicas, and one connection object a replica.

The transport is the httpx API's one-method seam (`handle_async_request`) over aiohttp. Requests go to it
directly: a client's cookies, redirects and auth flows have no place between a gateway and its engines.
"""

import asyncio
import contextlib
import errno
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx2
from httpx_aiohttp.httpx2 import AiohttpTransport

from engine_adapters.errors import (
    EngineDisconnected,
    EngineError,
    EngineExhausted,
    EngineTimeout,
    EngineUnreachable,
)

Headers = list[tuple[bytes, bytes]]

KEEPALIVE_S = 4.0
"""Idle connections are closed after this: engines' uvicorn closes its end after 5 s, and a request sent
into a closing connection is lost."""

_JSON: Headers = [(b"content-type", b"application/json")]
_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class Timeouts(NamedTuple):
    """Limits towards an engine, in seconds."""

    connect_s: float
    idle_s: float


class Reply:
    """An engine's answer whose body has not been read: status, headers and an iterator of body chunks.

    Chunks come as they arrive, raw. Iterating raises `EngineDisconnected` or `EngineTimeout`.
    `aclose` may be called at any time, also from a cancelled task; unread, it drops the connection, by which
    the engine learns that nobody waits any more.
    """

    __slots__ = ("_chunks", "_drained", "_response", "_url", "headers", "status")

    def __init__(self, response: httpx2.Response, url: str) -> None:
        self.status = response.status_code
        self.headers: Headers = response.headers.raw
        self._response = response
        self._url = url
        self._drained = False
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._chunks: AsyncIterator[bytes] = aiter(response.stream)

    async def chunk(self, timeout_s: float | None = None) -> bytes:
        """The next chunk, or b"" at the end of the body.

        Args:
            timeout_s: bounds the wait more tightly than the connection's own limit.
        """
        try:
            if timeout_s is None:
                return await anext(self._chunks)
            async with asyncio.timeout(timeout_s):
                return await anext(self._chunks)
        except StopAsyncIteration:
            self._drained = True
            return b""
        except (httpx2.TransportError, aiohttp.ClientError, OSError) as error:
            # A TimeoutError is an OSError.
            raise _translate(error, self._url, sent=True) from error

    async def read(self, limit: int) -> bytes:
        """The whole body, cut off after `limit` bytes: for error answers and our own small questions."""
        parts: list[bytes] = []
        size = 0
        while size < limit and (chunk := await self.chunk()):
            parts.append(chunk)
            size += len(chunk)
        return b"".join(parts)[:limit]

    async def aclose(self) -> None:
        """Give the connection back, or drop it when the body was not read to its end."""
        if not self._drained:
            # A cancelled task must still close, or the pool loses the slot.
            await asyncio.shield(self._close())

    async def _close(self) -> None:
        # An error means that it is gone already, which is what closing wants.
        with contextlib.suppress(httpx2.TransportError, aiohttp.ClientError, OSError):
            await self._response.aclose()


def create_transport(ca_file: Path | None = None, *, tls: bool = True) -> AiohttpTransport:
    """A transport for engines: no limit on connections (engines queue), no cookies, no proxies.

    Args:
        ca_file: PEM bundle that signs the engines' certificates; None takes the system's.
        tls: whether engines are reached by https; without, nobody is trusted, which saves 30 ms of loading.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls:
        context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)

    def session() -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=context),
            # A shared jar would hand one user's cookies to the next.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_AUTO_HEADERS,
            trust_env=False,
        )

    return AiohttpTransport(verify=context, client=session)


class Connection:
    """The way to one engine: its base URL, our credentials there, and the limits.

    Args:
        url: base URL, e.g. "http://127.0.0.1:8101"; a path is kept as a prefix.
        transport: shared by all connections of a process.
        credential: sent as a bearer token; None sends none.
    """

    def __init__(
        self,
        url: str,
        transport: httpx2.AsyncBaseTransport,
        timeouts: Timeouts,
        credential: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._transport = transport
        self._authorization: Headers = (
            [(b"authorization", f"Bearer {credential}".encode())] if credential else []
        )
        self._extensions = _extensions(timeouts.connect_s, timeouts.idle_s)
        self._urls: dict[str, httpx2.URL] = {}

    async def send(
        self,
        method: str,
        path: str,
        headers: Headers | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request and return as soon as the answer's headers are here.

        Args:
            path: with its query, beginning with "/".
            timeout_s: bounds connecting and each silence instead of the connection's own limits.

        Raises:
            EngineUnreachable, EngineDisconnected, EngineTimeout
        """
        request = httpx2.Request(
            method,
            self._full(path),
            headers=[*(headers or ()), *self._authorization],
            content=body,
            extensions=self._extensions if timeout_s is None else _extensions(timeout_s, timeout_s),
        )
        try:
            response = await self._transport.handle_async_request(request)
        except (httpx2.TransportError, aiohttp.ClientError, OSError) as error:
            raise _translate(error, self.url, sent=False) from error
        return Reply(response, self.url)

    async def fetch(
        self, path: str, body: bytes = b"", *, timeout_s: float, limit: int = 4 << 20
    ) -> tuple[int, bytes]:
        """Ask a question of our own: GET, or POST with a JSON body. Returns status and body, whole.

        Raises as `send` does.
        """
        try:
            async with asyncio.timeout(timeout_s):
                method, headers = ("POST", _JSON) if body else ("GET", [])
                reply = await self.send(method, path, headers, body, timeout_s=timeout_s)
                try:
                    return reply.status, await reply.read(limit)
                finally:
                    await reply.aclose()
        except TimeoutError as error:
            raise EngineTimeout(f"{self.url}{path} did not answer within {timeout_s:g} s") from error

    def _full(self, path: str) -> httpx2.URL:
        # Parsing a URL costs as much as a small request's whole routing; the paths are few. A path with a
        # query or an id in it is not kept, or clients could grow the table.
        url = self._urls.get(path)
        if url is None:
            url = httpx2.URL(self.url + path)
            if len(self._urls) < 64:
                self._urls[path] = url
        return url


def _extensions(connect_s: float, idle_s: float) -> dict[str, Any]:
    return {"timeout": {"connect": connect_s, "read": idle_s, "write": idle_s, "pool": None}}


def _translate(error: Exception, url: str, *, sent: bool) -> EngineError:
    # The transport maps aiohttp's errors loosely (a dropped connection becomes a ConnectTimeout): the cause
    # tells.
    cause = error.__cause__ if isinstance(error, httpx2.TransportError) and error.__cause__ else error
    if isinstance(cause, TimeoutError):
        return EngineTimeout(f"{url} stayed silent beyond its limit")
    if isinstance(cause, aiohttp.ClientConnectorError) and cause.errno in (errno.EMFILE, errno.ENFILE):
        return EngineExhausted(
            f"no connection to {url}: {cause.os_error.strerror}; raise the limit (ulimit -n)"
        )
    if not sent and isinstance(cause, aiohttp.ClientConnectorError):
        return EngineUnreachable(f"no connection to {url}: {cause.os_error.strerror or cause}")
    return EngineDisconnected(f"{url} broke the connection: {type(cause).__name__}")
