"""A real uvicorn for an ASGI app, in a thread, on a loopback port that it can leave and come back to."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.ports import free_port

# SO_LINGER with a time of zero: closing sends a reset, as a killed process with unread data does.
RESET = struct.pack("ii", 1, 0)


class ThreadedServer:
    """Starts, stops, dies and freezes, always on the port that it got first."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app
        self._transports: dict[tuple[str, int | None], asyncio.Transport] = {}
        self._thread: threading.Thread | None = None
        self._thawed = threading.Event()
        self._thawed.set()
        self.port = free_port()

    def start(self) -> None:
        """Listen and serve; returns when connections are accepted."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        config = uvicorn.Config(
            self._app, http=self._protocol(), lifespan="off", log_config=None, access_log=False
        )
        started = threading.Event()
        self._server = _Server(config, started)
        self._thread = threading.Thread(target=self._run, args=(listener, started), name=f"fake-{self.port}")
        self._thread.start()
        started.wait()

    def stop(self) -> None:
        """Close the listener and reset every connection, as `kill -9` does."""
        if self._thread is None:
            return
        self.thaw()
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
        self._thread = None

    def freeze(self) -> None:
        """Answer nothing and read nothing while the kernel still accepts connections, as SIGSTOP does."""
        self._thawed.clear()
        self._loop.call_soon_threadsafe(self._thawed.wait)

    def thaw(self) -> None:
        self._thawed.set()

    def reset(self, client: tuple[str, int | None]) -> None:
        """Reset the connection from `client`; called on the server's own loop."""
        transport = self._transports.get(client)
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            transport.abort()

    def _run(self, listener: socket.socket, started: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving

        try:
            asyncio.run(serve())
        finally:
            started.set()  # also if it failed: start() must not wait for ever

    def _end(self) -> None:
        for server in self._server.servers:
            server.close()
        for client in list(self._transports):
            self.reset(client)
        self._serving.cancel()

    def _protocol(self) -> type[HttpToolsProtocol]:
        transports = self._transports

        class Protocol(HttpToolsProtocol):
            """Remembers its transport, so that a fault can reset the connection under the app."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                transports[tuple(transport.get_extra_info("peername"))] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                if self.client is not None:
                    transports.pop(self.client, None)

        return Protocol


class _Server(uvicorn.Server):
    """Tells when it accepts connections."""

    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started.set()
