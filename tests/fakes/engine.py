"""A deterministic engine with vLLM's bodies, prefix cache, events and time, without a model.

async with FakeEngine(events=True) as engine:
    engine.speed.prefill_tokens_per_s = 5000
    engine.faults.die_after_chunks = 3
    ... requests to engine.url ...
    assert engine.received[-1].aborted
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from starlette.responses import JSONResponse, PlainTextResponse, Response

from tests.fakes.faults import Faults, Received
from tests.fakes.generation import Generation
from tests.fakes.kv_events import KvEventPublisher
from tests.fakes.prefix_cache import PrefixCache
from tests.fakes.routes import RequestError, Routes
from tests.fakes.scheduler import Scheduler, Speed
from tests.fakes.server import ThreadedServer
from tests.fakes.tokens import ByteTokenizer, Tokenizer

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[Any], Awaitable[None]]


class FakeEngine:
    """One fake replica; a context manager, plain or asynchronous."""

    def __init__(
        self,
        model: str = "fake",
        *,
        loras: Iterable[str] = (),
        pooling: bool = False,
        tokenizer: Tokenizer | None = None,
        max_model_len: int = 8192,
        block_size: int = 16,
        num_blocks: int = 10_000,
        max_running: int = 256,
        prompt_tokens_details: bool = True,
        events: bool = False,
        rank: int = 0,
    ) -> None:
        self.model = model
        self.loras = tuple(loras)
        self.pooling = pooling
        self.tokenizer = tokenizer or ByteTokenizer()
        self.max_model_len = max_model_len
        self.prompt_tokens_details = prompt_tokens_details
        self.faults = Faults()
        self.speed = Speed()
        self.received: list[Received] = []
        self.cache = PrefixCache(block_size, num_blocks)
        self.publisher: KvEventPublisher | None = None
        self._max_running = max_running
        self._events, self._rank = events, rank
        self._server = ThreadedServer(self)
        self._routes = Routes(self)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def running(self) -> int:
        """Requests in the batch, like vllm:num_requests_running."""
        return self.scheduler.running

    @property
    def waiting(self) -> int:
        return self.scheduler.waiting

    def requests(self, path: str) -> list[Received]:
        """What came to `path`, in order."""
        return [request for request in self.received if request.path == path]

    def start(self) -> None:
        """Open the publisher, then the listener; what ran before a stop is gone, the cache is as it was."""
        self.scheduler = Scheduler(self.cache, self.speed, self._max_running, self._publish)
        if self._events and self.publisher is None:
            self._folder = tempfile.mkdtemp(prefix="fake-")
            folder = f"ipc://{self._folder}"
            self.publisher = KvEventPublisher(f"{folder}/events", f"{folder}/replay", rank=self._rank)
        self._server.start()

    def close(self) -> None:
        """End everything that this fake started."""
        self.stop()
        if self.publisher is not None:
            self.publisher.close()
            self.publisher = None
            shutil.rmtree(Path(self._folder))

    def stop(self) -> None:
        """Refuse connections and reset those that are open; `start` comes back on the same port."""
        self._server.stop()

    def restart(self) -> None:
        """Die, and come back on the same port with an empty cache and events from sequence 0."""
        self.stop()
        self.cache = PrefixCache(self.cache.block_size, self.cache.num_blocks)
        if self.publisher is not None:
            self.publisher.restart()
        self._routes = Routes(self)
        self.start()

    def freeze(self) -> None:
        """Accept connections and answer nothing at all, as under SIGSTOP."""
        self._server.freeze()

    def thaw(self) -> None:
        self._server.thaw()

    def reset_prefix_cache(self) -> None:
        """Forget the cache; the event comes with the next request's batch."""
        self.cache.reset()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        request = Received(scope["method"], scope["path"], headers)
        request.body = await _body(receive)
        self.received.append(request)
        try:
            answer = await self._answer(request)
        except RequestError as error:
            answer = error.response()
        if isinstance(answer, Generation):
            reset = partial(self._server.reset, tuple(scope["client"]))
            await answer.run(request, self.scheduler, self.faults, reset, receive, send)
        else:
            request.finished = True
            await answer(scope, receive, send)

    async def _answer(self, request: Received) -> Response | Generation:
        if request.path == "/health":
            await asyncio.sleep(self.faults.health_delay_s)
            return Response(status_code=self.faults.health_status)
        if request.path == "/metrics":
            return PlainTextResponse(self._metrics())
        if request.path == "/kv_event_sources":
            return JSONResponse(self._event_sources())
        if request.path == "/reset_prefix_cache":
            self.reset_prefix_cache()
            return JSONResponse({"success": True})
        return self._routes.answer(request)

    def _publish(self) -> None:
        events = self.cache.take_events()
        if events and self.publisher is not None:
            self.publisher.publish(events)

    def _metrics(self) -> str:
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": len(self.cache) / self.cache.num_blocks,
            "prefix_cache_queries_total": self.cache.queries,
            "prefix_cache_hits_total": self.cache.hits,
        }
        labels = f'{{engine="{self._rank}",model_name="{self.model}"}}'
        return "".join(f"vllm:{name}{labels} {float(value)}\n" for name, value in values.items())

    def _event_sources(self) -> dict[str, Any]:
        if self.publisher is None:
            return {}
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.publisher.endpoint,
            "replay_endpoint": self.publisher.replay_endpoint,
            "buffer_steps": 10_000,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": self.publisher.topic,
        }
        return {str(self._rank): source}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
