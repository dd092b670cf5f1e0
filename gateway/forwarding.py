"""Sending a request to a replica and its answer to the client.

Nothing is sent to the client before the replica's first body chunk: until then another replica can take over,
once. After it, never: a second generation would not be the continuation of the first.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from engine_adapters.errors import (
    EngineDisconnected,
    EngineError,
    EngineExhausted,
    EngineTimeout,
    EngineUnreachable,
)
from engine_adapters.events import Tier
from engine_adapters.http import Headers, Reply
from gateway.dispatch import RESPONSES, Dispatch, Dispatcher, Request
from gateway.errors import (
    AnswerBroken,
    GatewayError,
    Overloaded,
    ReplicaFailed,
    ReplicaTimeout,
    envelope,
)
from gateway.exchange import Exchange
from gateway.fleet import Replica
from gateway.headers import sort_answer
from gateway.prefetch import Prefetcher
from gateway.routing import Candidate, Passage
from gateway.settings import TimeoutSettings
from gateway.sse import EventStream, error_event
from gateway.telemetry.metrics import GatewayMetrics
from gateway.usage import read_usage

log = logging.getLogger(__name__)

_UNAVAILABLE = frozenset((502, 503, 504))
"""Answers by which a replica, or the proxy before it, says that it can't serve now: another may."""

_REFUSAL_BYTES = 1 << 20
"""Most of an engine's error answer that is read."""

_USAGE_BYTES = 1 << 20
"""Answers beyond this size are not searched for their usage: it would hold up the event loop."""

_TIERS = tuple(tier.name.lower().encode() for tier in Tier)

_BODY_HEADERS = frozenset((b"content-type", b"content-length", b"content-encoding"))


@dataclass(frozen=True, slots=True)
class Upstream:
    """A request as it goes to a replica, whichever it will be.

    Attributes:
        streamed: the answer comes as it is generated.
        drop_usage: the final usage chunk was asked for by us, not by the client.
    """

    method: str
    path: str
    headers: Headers
    body: bytes
    streamed: bool = False
    drop_usage: bool = False


class _TryElsewhere(Exception):
    """The replica failed before its first chunk.

    Args:
        error: what the client gets if nobody takes over.
        again: the same replica may be asked once more when there is no other.
    """

    def __init__(self, error: GatewayError, *, again: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.again = again


class Forwarder:
    """Forwards requests to the replicas of a fleet."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        prefetcher: Prefetcher,
        timeouts: TimeoutSettings,
        metrics: GatewayMetrics,
    ) -> None:
        self._dispatcher = dispatcher
        self._prefetcher = prefetcher
        self._first_chunk_s = timeouts.first_chunk_s
        self._idle_s = timeouts.idle_s
        # The connection's own limit is the longer of the two, and a second clock costs something each chunk.
        self._chunk_s = timeouts.idle_s if timeouts.idle_s < timeouts.first_chunk_s else None
        self._metrics = metrics

    async def forward(self, request: Request, upstream: Upstream, exchange: Exchange) -> None:
        """Answer the exchange with a replica's answer.

        Raises:
            GatewayError: when nothing was sent to the client.
            AnswerBroken: a document broke in its middle. (A stream ends with an error event.)
        """
        if request.path == RESPONSES:
            field = "previous_response_id"
            self._dispatcher.stored.check(request.body.get(field), exchange.owner, param=field)
        dispatch = await self._dispatcher.look_up(request)
        exchange.model = request.model  # not before: clients could fill the metrics with labels
        if dispatch.context.prompt.unknown:
            self._metrics.unknown(request.model, str(dispatch.context.prompt.unknown))
        first = self._dispatcher.decide(dispatch).chosen
        try:
            await self._attempt(dispatch, first, upstream, exchange)
        except _TryElsewhere as failure:
            dispatch, others = await self._others(request, dispatch, first.replica)
            if not others and not failure.again:
                raise failure.error from None
            second = self._dispatcher.decide(dispatch, others or [first.replica]).chosen
            self._moved(first.replica, second.replica, failure, exchange)
            try:
                await self._attempt(dispatch, second, upstream, exchange)
            except _TryElsewhere as final:
                raise final.error from None

    async def _others(
        self, request: Request, dispatch: Dispatch, failed: Replica
    ) -> tuple[Dispatch, list[Replica]]:
        """Who can take over: those that served when the request came, else those that have risen since."""
        others = _able(dispatch, failed)
        if not others:
            with contextlib.suppress(GatewayError):  # what failed first is the better answer
                dispatch = await self._dispatcher.look_up(request)
                others = _able(dispatch, failed)
        return dispatch, others

    async def forward_stored(self, response: str, upstream: Upstream, exchange: Exchange) -> None:
        """Answer the exchange with what the replica that keeps a response says of it.

        Raises:
            GatewayError, AnswerBroken: as `forward`.
        """
        self._dispatcher.stored.check(response, exchange.owner)
        dispatch = self._dispatcher.keeper(response)
        try:
            await self._attempt(dispatch, self._dispatcher.decide(dispatch).chosen, upstream, exchange)
        except _TryElsewhere as failure:
            raise failure.error from None

    def _moved(self, source: Replica, to: Replica, failure: _TryElsewhere, exchange: Exchange) -> None:
        self._metrics.moved(source.name)
        log.warning(
            "request moves to another replica",
            extra={
                "request_id": exchange.request_id.decode(),
                "replica": source.name,
                "to": to.name,
                "reason": str(failure),
            },
        )

    async def _attempt(
        self, dispatch: Dispatch, chosen: Candidate, upstream: Upstream, exchange: Exchange
    ) -> None:
        replica = chosen.replica
        exchange.chosen = chosen
        self._dispatcher.commit(dispatch, replica)
        passage = Passage(chosen, streamed=upstream.streamed)
        prefetch = self._prefetcher.begin(dispatch.context, chosen)
        reply: Reply | None = None
        try:
            if prefetch.ordered:
                await asyncio.sleep(0)  # the order goes out first
            try:
                async with replica.patience(self._first_chunk_s):
                    reply = await replica.engine.connection.send(
                        upstream.method,
                        upstream.path,
                        _headers(upstream, replica),
                        _body(upstream, replica, dispatch.context.model),
                    )
                    first = await reply.chunk()
            except TimeoutError:
                raise self._silent(replica) from None
            except EngineError as error:
                raise _failed(replica, error) from error
            passage.first_chunk()
            prefetch.first_chunk()
            if not 200 <= reply.status < 300:
                await self._refuse(replica, reply, first, exchange)
            else:
                exchange.first_chunk_at = time.perf_counter()
                replica.answered()
                if upstream.path.partition("?")[0] == RESPONSES:
                    self._dispatcher.stored.note(first, replica.name, exchange.owner)
                await self._relay(replica, reply, first, upstream, exchange)
        finally:
            passage.end(exchange.usage)
            prefetch.end()
            if reply is not None:
                await reply.aclose()

    def _silent(self, replica: Replica) -> GatewayError | _TryElsewhere:
        if not replica.up:
            return _TryElsewhere(ReplicaFailed("The replica went down before it answered."))
        return ReplicaTimeout(
            f"The replica sent nothing within {self._first_chunk_s:g} s (timeouts.first_chunk_s)."
        )

    async def _refuse(self, replica: Replica, reply: Reply, first: bytes, exchange: Exchange) -> None:
        """Pass on an error answer, in the envelope."""
        if not 400 <= reply.status < 600:
            raise ReplicaFailed(
                f"Replica {replica.name} answered {reply.status}: is its url that of the engine itself?"
            )
        try:
            async with asyncio.timeout(self._idle_s):
                body = first + await reply.read(_REFUSAL_BYTES)
        except TimeoutError:
            body = first
        except EngineError as error:
            raise _failed(replica, error) from error
        refusal = replica.engine.refusal(reply.status, body)
        if reply.status >= 500:
            replica.suspected.set()
        if reply.status in (401, 403):
            raise ReplicaFailed(
                f"Replica {replica.name} refuses the gateway's credentials: set its api_key in the settings."
            )
        if reply.status in _UNAVAILABLE:
            when = _retry_after(reply.headers)
            raise _TryElsewhere(
                Overloaded(refusal.message, status=reply.status, code=refusal.code, retry_after=when)
            )
        answer = envelope(refusal.message, refusal.type, refusal.param, refusal.code)
        headers = [header for header in sort_answer(reply.headers) if header[0] not in _BODY_HEADERS]
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(answer)),
            *_own_headers(exchange),
        ]
        await exchange.start(reply.status, headers)
        await exchange.write(answer, more=False)

    async def _relay(
        self, replica: Replica, reply: Reply, first: bytes, upstream: Upstream, exchange: Exchange
    ) -> None:
        headers = sort_answer(reply.headers)
        headers += _own_headers(exchange)
        if _is_event_stream(headers):
            # We may take an event out or put one in, so an announced length no longer holds.
            headers = [header for header in headers if header[0] != b"content-length"]
            headers.append((b"x-accel-buffering", b"no"))
            await exchange.start(reply.status, headers)
            await self._relay_events(replica, reply, first, EventStream(upstream.drop_usage), exchange)
        else:
            await exchange.start(reply.status, headers)
            await self._relay_document(replica, reply, first, exchange)

    async def _relay_events(
        self, replica: Replica, reply: Reply, chunk: bytes, events: EventStream, exchange: Exchange
    ) -> None:
        try:
            while chunk:
                passed = events.feed(chunk)
                if passed:
                    await exchange.write(passed)
                chunk = await reply.chunk(self._chunk_s)
            replica.answered()
            await exchange.write(events.finish(), more=False)
        except EngineError as error:
            self._broke(replica, error, exchange)
            failure = ReplicaFailed("The replica broke off in the middle of its answer.")
            await exchange.write(error_event(failure), more=False)
        finally:
            exchange.usage = events.usage

    async def _relay_document(self, replica: Replica, reply: Reply, chunk: bytes, exchange: Exchange) -> None:
        kept: list[bytes] = []
        size = 0
        try:
            while chunk:
                size += len(chunk)
                if size <= _USAGE_BYTES:
                    kept.append(chunk)
                await exchange.write(chunk)
                chunk = await reply.chunk(self._chunk_s)
        except EngineError as error:
            self._broke(replica, error, exchange)
            raise AnswerBroken(replica.name) from error
        replica.answered()
        await exchange.write(b"", more=False)
        if size <= _USAGE_BYTES:
            exchange.usage = read_usage(b"".join(kept)).usage

    def _broke(self, replica: Replica, error: EngineError, exchange: Exchange) -> None:
        replica.suspected.set()
        self._metrics.broke(replica.name)
        request_id = exchange.request_id.decode()
        log.warning(
            "answer broke off",
            extra={"request_id": request_id, "replica": replica.name, "reason": str(error)},
        )


def _able(dispatch: Dispatch, failed: Replica) -> list[Replica]:
    return [replica for replica in dispatch.replicas if replica.up and not _same(replica, failed)]


def _same(one: Replica, other: Replica) -> bool:
    """Whether both are the same server; its data-parallel ranks fail together."""
    return one.engine.connection is other.engine.connection


def _headers(upstream: Upstream, replica: Replica) -> Headers:
    own = replica.engine.headers
    return [*upstream.headers, *own] if own else upstream.headers


def _body(upstream: Upstream, replica: Replica, model: str) -> bytes:
    return replica.engine.addressed(upstream.body, model, lora=replica.base(model) != model)


def _failed(replica: Replica, error: EngineError) -> GatewayError | _TryElsewhere:
    if isinstance(error, EngineExhausted):
        return Overloaded("The gateway has no file descriptor left; try again soon.")
    if isinstance(error, EngineUnreachable):
        replica.fall(str(error))
    replica.suspected.set()
    if isinstance(error, EngineTimeout):
        return _TryElsewhere(ReplicaTimeout(f"Replica {replica.name} can't be reached in time."))
    # A kept connection may just have been closed by the other side: that says nothing of the replica.
    return _TryElsewhere(
        ReplicaFailed(f"Replica {replica.name} broke before it answered."),
        again=isinstance(error, EngineDisconnected),
    )


def _retry_after(headers: Headers) -> bytes:
    """When the engine, or the proxy before it, wants to be asked again; soon, where it doesn't say."""
    return next((value for name, value in headers if name.lower() == b"retry-after"), b"1")


def _own_headers(exchange: Exchange) -> Headers:
    chosen = exchange.chosen
    assert chosen is not None
    predicted = b", ".join(b"%s=%d" % pair for pair in zip(_TIERS, chosen.cached, strict=True) if pair[1])
    return [
        (b"x-hpkv-replica", chosen.replica.name.encode()),
        (b"x-hpkv-cached-tokens", predicted or b"gpu=0"),
    ]


def _is_event_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)
