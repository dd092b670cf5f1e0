"""What the gateway, and `hpkv agent`, ask an engine's agent with.

Many calls share one connection; numbers tie answers to them.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

import msgspec
import zmq.asyncio

from cache.prefix import Keys as PrefixKeys
from cache.prefix import Tokens
from engine_adapters import wire
from engine_adapters.agent.keys import Keys
from engine_adapters.agent.link import Link
from engine_adapters.errors import (
    AgentRefused,
    EngineDisconnected,
    EngineError,
    EngineTimeout,
    WireError,
)

TIMEOUT_S: Final = 5.0

T = TypeVar("T", bound=wire.Answer)


class Piece(NamedTuple):
    """Pages of a tier as of the stream's message `sequence`; later changes may be in it, too."""

    sequence: int
    keys: PrefixKeys
    ends: wire.Ends


class AgentClient:
    """Calls to one agent. Made and used on one event loop; `close` when done, or use it as a context.

    All calls raise EngineError: EngineUnreachable (nothing was sent), EngineDisconnected, EngineTimeout,
    AgentRefused, WireError. A caller that is cancelled leaves nothing behind here.
    """

    def __init__(
        self,
        endpoint: str,
        context: zmq.asyncio.Context,
        keys: Keys | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`endpoint` is the agent's control socket (of a rank: `wire.endpoints(…).control`)."""
        self.endpoint = endpoint
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[wire.Answer | EngineError]] = {}
        self._link = Link(endpoint, context, keys, self._take, self._fail)

    @property
    def in_flight(self) -> int:
        """Calls that wait for an answer."""
        return len(self._waiting)

    # -- calls ------------------------------------------------------------------------------------

    async def hello(self, timeout_s: float | None = None) -> wire.Identity:
        """Who it is."""
        return await self.call(wire.Hello(), wire.Identity, timeout_s)

    async def stats(self, timeout_s: float | None = None) -> wire.Statistics:
        """How it is."""
        return await self.call(wire.Stats(), wire.Statistics, timeout_s)

    async def match(
        self,
        tokens: Tokens | Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        *,
        computed: int = 0,
        timeout_s: float | None = None,
    ) -> wire.Found:
        """What its tiers have of a prompt, beyond `computed` tokens."""
        call = wire.Match(tokens=wire.pack_tokens(tokens), salt=salt, lora=lora, computed=computed)
        return await self.call(call, wire.Found, timeout_s)

    async def prefetch(
        self,
        tokens: Tokens | Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        *,
        seconds: float,
        computed: int = 0,
        timeout_s: float | None = None,
    ) -> wire.Order:
        """Have brought up what a request would load, and protected for `seconds`."""
        packed = wire.pack_tokens(tokens)
        call = wire.Prefetch(tokens=packed, salt=salt, lora=lora, seconds=seconds, computed=computed)
        return await self.call(call, wire.Order, timeout_s)

    async def status(self, ticket: int, timeout_s: float | None = None) -> wire.Progress:
        """How far a prefetch is."""
        return await self.call(wire.Status(ticket=ticket), wire.Progress, timeout_s)

    async def cancel(self, ticket: int, timeout_s: float | None = None) -> wire.Progress:
        """Give a prefetch up, or say that its request came."""
        return await self.call(wire.Cancel(ticket=ticket), wire.Progress, timeout_s)

    async def pin(
        self,
        tokens: Tokens | Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        *,
        seconds: float,
        timeout_s: float | None = None,
    ) -> wire.Kept:
        """Keep what of a prompt is in `host` and `ssd`."""
        call = wire.Pin(tokens=wire.pack_tokens(tokens), salt=salt, lora=lora, seconds=seconds)
        return await self.call(call, wire.Kept, timeout_s)

    async def unpin(
        self,
        tokens: Tokens | Sequence[int],
        salt: str | None = None,
        lora: str | None = None,
        timeout_s: float | None = None,
    ) -> wire.Kept:
        """End a prompt's pin."""
        call = wire.Unpin(tokens=wire.pack_tokens(tokens), salt=salt, lora=lora)
        return await self.call(call, wire.Kept, timeout_s)

    async def clear(
        self, tier: wire.TierName | None = None, salt: str | None = None, timeout_s: float | None = None
    ) -> wire.Removed:
        """Remove one tenant's pages, or everything, from one tier or all. May take long."""
        return await self.call(wire.Clear(tier=tier, salt=salt), wire.Removed, timeout_s)

    async def snapshot(
        self, tier: wire.TierName, timeout_s: float | None = None
    ) -> AsyncGenerator[Piece, None]:
        """A tier's pages, piece by piece as they come, the columns not copied. The limit is for each."""
        with _Call(self) as call:
            await call.send(wire.Snapshot(tier=tier), timeout_s)
            last = False
            while not last:
                listing = await call.answer(wire.Listing, timeout_s)
                last = listing.last
                yield Piece(listing.sequence, *wire.pages_of(listing.keys, listing.ends))

    async def call(self, call: wire.Call, answer: type[T], timeout_s: float | None = None) -> T:
        """Any call with one answer."""
        with _Call(self) as one:
            deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
            await one.send(call, timeout_s)
            return await one.answer(answer, max(deadline - time.monotonic(), 0))

    # -- life -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Fail the calls in flight, and leave nothing behind."""
        await self._link.close()
        self._fail(EngineDisconnected(f"the connection to the agent at {self.endpoint} was closed here"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _take(self, frame: bytes) -> None:
        try:
            envelope = _ENVELOPE.decode(frame)
        except (msgspec.DecodeError, RecursionError):
            self._fail(WireError(f"what {self.endpoint} says is no agent's: is it the right address?"))
            return
        waiting = self._waiting.get(envelope.number)
        if waiting is None:
            return  # its caller has gone
        if envelope.version != wire.VERSION:
            waiting.put_nowait(
                WireError(
                    f"the agent at {self.endpoint} speaks version {envelope.version}, this client "
                    f"{wire.VERSION}: use the same HPKV on both sides"
                )
            )
            return
        try:
            waiting.put_nowait(_ANSWER.decode(envelope.body))
        except (msgspec.DecodeError, RecursionError) as error:
            waiting.put_nowait(WireError(f"an answer of {self.endpoint} can't be read: {error}"))

    def _fail(self, error: EngineError) -> None:
        for waiting in self._waiting.values():
            waiting.put_nowait(error)


class _Call:
    """One call in flight; afterwards nothing of it is left."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._number = next(client._numbers)
        self._answers: asyncio.Queue[wire.Answer | EngineError] = asyncio.Queue()

    def __enter__(self) -> Self:
        self._client._waiting[self._number] = self._answers
        return self

    def __exit__(self, *error: object) -> None:
        del self._client._waiting[self._number]

    async def send(self, call: wire.Call, timeout_s: float | None) -> None:
        client = self._client
        body = msgspec.Raw(_encode(call))
        frame = _encode(wire.Envelope(wire.VERSION, self._number, body))
        if len(frame) > wire.MAX_FRAME:
            raise AgentRefused("too_large", f"{len(frame)} bytes are more than an agent takes")
        await client._link.send(frame, client._timeout_s if timeout_s is None else timeout_s)

    async def answer(self, kind: type[T], timeout_s: float | None) -> T:
        client = self._client
        limit = client._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit):
                answer = await self._answers.get()
        except TimeoutError:
            raise EngineTimeout(f"the agent at {client.endpoint} didn't answer in time") from None
        if isinstance(answer, EngineError):
            raise answer
        if isinstance(answer, wire.Refused):
            raise AgentRefused(answer.code, answer.message)
        if not isinstance(answer, kind):
            raise WireError(f"{client.endpoint} answered {kind.__name__} with {type(answer).__name__}")
        return answer


_ENVELOPE = msgspec.msgpack.Decoder(wire.Envelope)
_ANSWER: msgspec.msgpack.Decoder[wire.Answer] = msgspec.msgpack.Decoder(wire.Answer)
_encode = msgspec.msgpack.Encoder().encode
