"""Prefix knowledge of one model: its tokenizers, the index of its replicas, the streams feeding it."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import zmq.asyncio

from cache.prefix import PrefixKeys, seed
from engine_adapters.base import AgentAddress
from engine_adapters.engines import KINDS
from engine_adapters.events import Origin, Tier
from engine_adapters.subscriber import Subscriber
from gateway.fleet import Replica
from gateway.index import Feed, Index, Lifetimes, Store
from gateway.knowledge.agents import Follower
from gateway.knowledge.reading import Opener, Reading
from gateway.knowledge.vocabulary import check_ids
from gateway.routing import Held, Matches, Prompt
from gateway.tokenization import Endpoint, ModelTokenizer, Tokens, Unknown

_ENDPOINTS = frozenset(endpoint.value for endpoint in Endpoint)


class ModelKnowledge:
    """Everything about one base model and its LoRA adapters.

    Engines of another kind may make another prompt of the same request, so each kind has a `Reading`.
    """

    def __init__(
        self, name: str, blocks: int, caches: int, lifetimes: Lifetimes, context: zmq.asyncio.Context
    ) -> None:
        """Takes bounds of the index: `blocks` and, for replicas to come and go, `caches`."""
        self.name = name
        self._context = context
        self.index = Index(blocks, caches, lifetimes)
        self.feed = Feed(self.index, time.monotonic)
        self._readings: dict[str, Reading] = {}
        self._replicas: dict[str, Replica] = {}
        self._streams: dict[str, tuple[Subscriber, asyncio.Task[None]]] = {}
        self._followers: dict[str, tuple[Follower, asyncio.Task[None]]] = {}
        self._shared_pages = blocks // 2
        self._feeding = asyncio.create_task(self.feed.run(), name=f"index {name}")

    def reads(self, kind: str) -> bool:
        """Whether there is a tokenizer for engines of this kind, or one is being loaded."""
        return kind in self._readings

    def open(self, kind: str, opener: Opener) -> None:
        """Load the tokenizer for engines of this kind."""
        self._readings[kind] = Reading(self.name)
        self._readings[kind].open(opener)

    def join(self, replica: Replica) -> None:
        """A replica came up, of a kind that was opened: what it held before is gone, and its stream tells
        what it holds."""
        self._replicas[replica.name] = replica
        origin = Origin(replica.name, replica.rank)
        stream = replica.engine.events(origin, self.feed, self._context)
        self.index.attach(origin, sends_events=stream is not None)
        if stream is not None:
            task = asyncio.create_task(stream.run(), name=f"events {replica.name}")
            self._streams[replica.name] = (stream, task)
        agent = replica.engine.address.rank_agent
        if agent is not None:
            self._follow(replica, agent, stream is not None)
        self._readings[replica.engine.kind].join(replica)

    def _follow(self, replica: Replica, address: AgentAddress, sends_events: bool) -> None:
        def attach(pages: Mapping[Tier, int], store: Store | None) -> None:
            origin = Origin(replica.name, replica.rank)
            self.index.attach(origin, sends_events=sends_events, pages=pages, store=store)

        follower = Follower(replica, address, self.feed, attach, self._context, self._shared_pages)
        task = asyncio.create_task(follower.run(), name=f"agent {replica.name}")
        self._followers[replica.name] = (follower, task)
        replica.agent = follower.agent

    def __contains__(self, replica: Replica) -> bool:
        return self._replicas.get(replica.name) is replica

    def leave(self, replica: Replica) -> None:
        """A replica went down: nothing of it is believed any more."""
        if self._replicas.pop(replica.name, None) is not None:
            self.index.detach(replica.name)
            self._readings[replica.engine.kind].leave(replica)
        if replica.name in self._streams:
            self._streams.pop(replica.name)[1].cancel()
        if replica.name in self._followers:
            self._followers.pop(replica.name)[1].cancel()
            replica.agent = None

    def streams(self) -> Mapping[str, Subscriber]:
        """The event streams of the replicas that send any."""
        return {name: stream for name, (stream, _) in list(self._streams.items())}

    def followers(self) -> Mapping[str, Follower]:
        """What follows the agents of the replicas that have any."""
        return {name: follower for name, (follower, _) in list(self._followers.items())}

    def tokenizers(self) -> Iterator[tuple[str, ModelTokenizer]]:
        """The tokenizers by kind of engine, as far as they are loaded."""
        for kind, reading in self._readings.items():
            if reading.tokenizer is not None:
                yield kind, reading.tokenizer

    def verdict(self) -> str:
        """How far prompts are known, for operators: "agrees" is well; else why routing does without."""
        verdicts = {kind: reading.verdict() for kind, reading in self._readings.items()}
        if len(set(verdicts.values())) == 1:
            return next(iter(verdicts.values()))
        return ", ".join(f"{kind}: {verdict}" for kind, verdict in verdicts.items())

    @property
    def settled(self) -> bool:
        """Whether all tokenizers have been loaded and compared, or have failed to be."""
        return all(reading.settled for reading in self._readings.values())

    async def prompt(self, path: str, body: Mapping[str, Any], lora: str | None, length: int) -> Prompt:
        """What is known of a request's prompt.

        Args:
            lora: the adapter that was asked for, as the engine names it.
            length: of the prompt in tokens, roughly, for when its ids are unknown.

        Raises:
            InvalidRequest: it has token ids that a replica wouldn't survive.
            Overloaded: too much text waits to be encoded.
        """
        for kind, tokenizer in self.tokenizers():
            if not KINDS[kind].refuses_unknown_ids and tokenizer.vocabulary:
                check_ids(body, tokenizer.vocabulary)
        if path not in _ENDPOINTS:
            return Prompt(length, unknown="endpoint")
        endpoint = Endpoint(path)
        read = {
            kind: await reading.tokens(endpoint, body)
            for kind, reading in list(self._readings.items())  # another may be opened meanwhile
            if reading.replicas
        }
        return _prompt(read, seed(lora, body.get("cache_salt")), length)

    def matches(self, prompt: Prompt) -> Matches:
        """Leading tokens by tier of each replica that holds any of the prompt."""
        found: dict[str, Held] = {}
        for keys in _distinct(prompt):
            match = self.index.match(keys)
            tokens = match.tokens.tolist()
            below = any(host or ssd or shared for _, host, ssd, shared in tokens)
            spans = match.spans() if below else [()] * len(tokens)
            for origin, (gpu, host, ssd, shared), lie in zip(match.origins, tokens, spans, strict=True):
                if not prompt.otherwise or self._keys(prompt, origin.replica) is keys:
                    found[origin.replica] = Held((gpu, host, ssd, shared), lie)
        return found

    def predict(self, prompt: Prompt, replica: Replica) -> None:
        """Note that a prompt was sent to a replica: it will lie there soon."""
        keys = prompt.keys_of(replica.engine.kind)
        if keys is not None:
            self.index.predict(keys, Origin(replica.name, replica.rank), time.monotonic())

    def absent(self, prompt: Prompt, replica: Replica, at: int) -> None:
        """Note that the page after `at` tokens of a prompt isn't on a replica's shared storage."""
        keys = prompt.keys_of(replica.engine.kind)
        if keys is not None:
            self.index.absent(keys, at, Origin(replica.name, replica.rank))

    def _keys(self, prompt: Prompt, replica: str) -> PrefixKeys | None:
        return prompt.keys_of(self._replicas[replica].engine.kind) if replica in self._replicas else None

    async def close(self) -> None:
        """Stop everything."""
        tasks = [
            self._feeding,
            *(task for _, task in self._streams.values()),
            *(task for _, task in self._followers.values()),
        ]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for reading in self._readings.values():
            await reading.close()


def _prompt(read: Mapping[str, Tokens | Unknown | None], start: int, length: int) -> Prompt:
    """One prompt of what each kind of engine reads; `start` is the seed of its keys."""
    keys = {
        kind: PrefixKeys(answer.ids, start) if isinstance(answer, Tokens) else None
        for kind, answer in read.items()
    }
    first = next((some for some in keys.values() if some is not None), None)
    if first is None:
        why = next(iter(read.values()), None)
        return Prompt(length, unknown=why.reason if isinstance(why, Unknown) else "no_tokenizer")
    if len(keys) == 1:
        return Prompt(len(first), first)
    alike = {kind for kind, some in keys.items() if some and np.array_equal(some.tokens, first.tokens)}
    return Prompt(len(first), first, otherwise={kind: keys[kind] for kind in keys.keys() - alike})


def _distinct(prompt: Prompt) -> list[PrefixKeys]:
    return [keys for keys in (prompt.keys, *prompt.otherwise.values()) if keys is not None]
