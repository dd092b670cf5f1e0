"""Prefix knowledge of one model: its tokenizer, the index of its replicas' caches, the streams feeding it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
import zmq.asyncio

from cache.prefix import PrefixKeys, seed
from engine_adapters.errors import EngineError
from engine_adapters.events import Origin
from engine_adapters.subscriber import Subscriber
from gateway.errors import Overloaded
from gateway.fleet import Replica
from gateway.index import Feed, Index, Lifetimes
from gateway.routing import Matches, Prompt
from gateway.tokenization import Endpoint, EngineCall, ModelTokenizer, TokenizerUnavailable, Tokens
from gateway.tokenization import EngineRefused as Refused
from gateway.tokenization import EngineUnreachable as Unreachable
from gateway.tokenization import Overloaded as EncodersBusy

log = logging.getLogger(__name__)

_ASK_S = 10.0
"""How long an engine may take to tell its tokens; nobody waits for it but comparisons and renders."""

_ENDPOINTS = frozenset(endpoint.value for endpoint in Endpoint)


class ModelKnowledge:
    """Everything about one base model and its LoRA adapters.

    Attributes:
        trouble: why there is no tokenizer, for operators.
    """

    def __init__(self, name: str, blocks: int, lifetimes: Lifetimes, context: zmq.asyncio.Context) -> None:
        self.name = name
        self._context = context
        self.index = Index(blocks, lifetimes=lifetimes)
        self.feed = Feed(self.index, time.monotonic)
        self.tokenizer: ModelTokenizer | None = None
        self.trouble = "the tokenizer is being loaded"
        self._replicas: dict[str, Replica] = {}
        self._streams: dict[str, tuple[Subscriber, asyncio.Task[None]]] = {}
        self._feeding = asyncio.create_task(self.feed.run(), name=f"index {name}")
        self._opening: asyncio.Task[None] | None = None

    def open(self, opener: Callable[[EngineCall], Coroutine[None, None, ModelTokenizer]]) -> None:
        """Load the tokenizer and compare it with an engine; prompts are unknown until both are done."""
        self._opening = asyncio.create_task(self._open(opener), name=f"tokenizer {self.name}")

    async def _open(self, opener: Callable[[EngineCall], Coroutine[None, None, ModelTokenizer]]) -> None:
        try:
            tokenizer = await opener(self._call)
        except (TokenizerUnavailable, OSError) as error:
            self.trouble = str(error)
            log.warning("no prefix knowledge", extra={"model": self.name, "reason": self.trouble})
            return
        await tokenizer.check_parity()
        self.tokenizer = tokenizer

    def join(self, replica: Replica) -> None:
        """A replica came up: what it held before is gone, and its stream tells what it holds."""
        self._replicas[replica.name] = replica
        origin = Origin(replica.name, replica.rank)
        stream = replica.engine.events(origin, self.feed, self._context)
        self.index.attach(origin, sends_events=stream is not None)
        if stream is not None:
            task = asyncio.create_task(stream.run(), name=f"events {replica.name}")
            self._streams[replica.name] = (stream, task)
        if self.tokenizer is not None:
            # It may have been started again with other flags.
            self._opening = asyncio.create_task(self._compare(self.tokenizer))

    async def _compare(self, tokenizer: ModelTokenizer) -> None:
        await tokenizer.check_parity()

    def __contains__(self, replica: Replica) -> bool:
        return replica.name in self._replicas

    def leave(self, replica: Replica) -> None:
        """A replica went down: nothing of it is believed any more."""
        if self._replicas.pop(replica.name, None) is not None:
            self.index.detach(replica.name)
        if replica.name in self._streams:
            self._streams.pop(replica.name)[1].cancel()

    def streams(self) -> Mapping[str, Subscriber]:
        """The event streams of the replicas that send any."""
        return {name: stream for name, (stream, _) in self._streams.items()}

    def verdict(self) -> str:
        """How far prompts are known, for operators: "agrees" is well; else why routing does without."""
        return self.trouble if self.tokenizer is None else str(self.tokenizer.parity.verdict)

    @property
    def settled(self) -> bool:
        """Whether the tokenizer has been loaded and compared, or has failed to be."""
        return self._opening is not None and self._opening.done()

    async def prompt(self, path: str, body: Mapping[str, Any], lora: str | None, length: int) -> Prompt:
        """What is known of a request's prompt.

        Args:
            lora: the adapter that was asked for, as the engine names it.
            length: of the prompt in tokens, roughly, for when its ids are unknown.

        Raises:
            Overloaded: too much text waits to be encoded.
        """
        if self.tokenizer is None:
            return Prompt(length, unknown="no_tokenizer")
        if path not in _ENDPOINTS:
            return Prompt(length, unknown="endpoint")
        try:
            answer = await self.tokenizer.tokens(Endpoint(path), body)
        except EncodersBusy as error:
            raise Overloaded(str(error)) from error
        if not isinstance(answer, Tokens):
            return Prompt(length, unknown=answer.reason)
        salt = body.get("cache_salt")
        return Prompt(len(answer.ids), PrefixKeys(answer.ids, seed(lora, salt)))

    def matches(self, prompt: Prompt) -> Matches:
        """Leading tokens by tier of each replica that holds any of the prompt."""
        if prompt.keys is None:
            return {}
        match = self.index.match(prompt.keys)
        return {
            origin.replica: (tokens[0], tokens[1], tokens[2], tokens[3])
            for origin, tokens in zip(match.origins, match.tokens.tolist(), strict=True)
        }

    def predict(self, prompt: Prompt, replica: Replica) -> None:
        """Note that a prompt was sent to a replica: it will lie there soon."""
        if prompt.keys is not None:
            self.index.predict(prompt.keys, Origin(replica.name, replica.rank), time.monotonic())

    async def close(self) -> None:
        """Stop everything."""
        tasks = [self._feeding, *(task for _, task in self._streams.values())]
        tasks += [self._opening] if self._opening is not None else []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self.tokenizer is not None:
            await self.tokenizer.close()

    async def _call(self, path: str, body: Mapping[str, Any]) -> Any:
        """Ask one living replica, in the tokenizer's terms."""
        replica = next((replica for replica in self._replicas.values() if replica.up), None)
        if replica is None:
            raise Unreachable(path, "no replica is up")
        try:
            status, answer = await replica.engine.connection.fetch(
                path, orjson.dumps({"model": self.name, **body}), timeout_s=_ASK_S, limit=64 << 20
            )
        except EngineError as error:
            raise Unreachable(path, str(error)) from error
        if status >= 400:
            raise Refused(path, status)
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise Unreachable(path, "it is not JSON") from error
