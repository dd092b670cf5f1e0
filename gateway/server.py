"""Running the gateway: the listener, and leaving by SIGTERM without cutting anybody off."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn

from gateway.app import Gateway
from gateway.fleet import NO_REPLICA
from gateway.listener import listener
from gateway.settings import Listen, Settings, SettingsError

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn that drains before it closes its listener, so that `/readyz` can say so meanwhile."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._exit = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Remember the loop that signals must reach, and settle down once all is imported."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        _calm_collector()

    async def main_loop(self) -> None:
        """Keep the date header true until told to end: uvicorn's own loop wakes ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._exit.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; at a second one, or at the first Ctrl-C in a quiet moment, leave."""
        if self._loop is None or self._gateway.drain.draining:
            self._end(sig, frame)
            self.force_exit = self._gateway.drain.draining
            return
        self._gateway.drain.draining = True
        self._loop.call_soon_threadsafe(self._drain, sig)

    def _drain(self, sig: int) -> None:
        self._leaving = asyncio.ensure_future(self._leave(sig))

    async def _leave(self, sig: int) -> None:
        log.info("draining", extra={"signal": signal.Signals(sig).name})
        cut = await self._gateway.drain.run()
        if cut:
            log.warning("grace time is over", extra={"cut_requests": cut})
        self._end(sig, None)
        self.force_exit = cut > 0

    def _end(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._exit.set)


def _calm_collector() -> None:
    """Spare requests the garbage collector's full passes, an eighth of their CPU time as measured.

    What was imported stays for ever, so it isn't looked through again, and requests make few cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _raise_file_limit() -> None:
    """Take all the file descriptors that we may have: a stream needs two, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _listening(listen: Listen) -> Iterator[list[socket.socket]]:
    """Sockets at all of the host's addresses. uvicorn's own way would put the failure into the log.

    Raises SettingsError if one can't be had.
    """
    with contextlib.ExitStack() as opened:
        try:
            found = socket.getaddrinfo(
                listen.host or None, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            plain = [one for one in found if one[0] == socket.AF_INET]
            sockets = [
                opened.enter_context(socket.create_server(address, family=family))
                for family, _, _, _, address in (found if socket.has_dualstack_ipv6() else plain or found)
            ]
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise SettingsError(
                f"listen: {listen.host}:{listen.port} can't be had ({why}): choose another by --host and "
                "--port, or end what has it"
            ) from error
        yield sockets


def serve(settings: Settings) -> None:
    """Run until told to end.

    Raises:
        SettingsError: its address can't be had.
    """
    with _listening(settings.listen) as sockets:
        _raise_file_limit()
        _serve(settings, sockets)


def _serve(settings: Settings, sockets: list[socket.socket]) -> None:
    gateway = Gateway(settings)
    if not settings.replicas:
        log.warning(f"the gateway has {NO_REPLICA}; until then /readyz and all requests answer 503")
    for one in sockets:
        log.info("listening", extra={"address": one.getsockname()[0], "port": one.getsockname()[1]})
    listen = settings.listen
    config = uvicorn.Config(
        gateway.app,
        loop="uvloop",
        http=listener(settings.limits),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        ssl_certfile=listen.tls_cert,
        ssl_keyfile=listen.tls_key,
        timeout_graceful_shutdown=5,
    )
    Server(config, gateway).run(sockets)
