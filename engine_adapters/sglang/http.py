"""SGLang seen from outside: its HTTP side, and where its KV events are."""

from typing import TypeVar

import msgspec
import orjson
import zmq.asyncio

from engine_adapters import refusals
from engine_adapters.base import Engine, Load, ModelCard, Refusal
from engine_adapters.errors import EngineAnswerInvalid
from engine_adapters.events import Origin, Sink, Tier
from engine_adapters.sglang.events import SglangEvents
from engine_adapters.subscriber import Subscriber

VERSION = "0.5.23"
"""Whose answers are known here, and those of later ones as far as they agree."""

_TOO_LONG = ("context length", "max_total_num_tokens")


T = TypeVar("T")


class _Load(msgspec.Struct):
    num_running_reqs: int
    num_waiting_reqs: int
    token_usage: float
    dp_rank: int = 0


class _Loads(msgspec.Struct):
    loads: list[_Load]


class _ModelInfo(msgspec.Struct):
    tokenizer_path: str


class SglangEngine(Engine):
    """An `sglang serve` process, or one behind a proxy."""

    kind = "sglang"
    refuses_unknown_ids = False

    def events(self, origin: Origin, sink: Sink, context: zmq.asyncio.Context) -> Subscriber | None:
        """As `Engine.events`; the stream tells of SGLang's own host tier, too."""
        endpoints = self.address.rank_events
        if endpoints is None:
            return None
        tiers = (Tier.GPU, Tier.HOST)
        return Subscriber(origin, endpoints, SglangEvents(), sink, context, tiers=tiers)

    async def check_health(self, *, timeout_s: float) -> None:
        """Ask `/ready`. `/health` takes a second, and generates a token where nobody else has one
        generated."""
        status, _ = await self.connection.fetch("/ready", timeout_s=timeout_s)
        if status == 404:
            await self.models(timeout_s=timeout_s)  # which tells if this is another kind of engine
        if status != 200:
            raise EngineAnswerInvalid(f"{self.connection.url}/ready answered {status}")

    async def models(self, *, timeout_s: float) -> list[ModelCard]:
        """As `Engine.models`. The cards name no source: `/model_info` does."""
        cards = await super().models(timeout_s=timeout_s)
        await self._require_ranks(timeout_s)
        info = await self._ask("/model_info", _ModelInfo, timeout_s)
        return [card._replace(root=info.tokenizer_path) if card.parent is None else card for card in cards]

    async def load(self, *, timeout_s: float) -> Load:
        """Running, waiting and KV use of this rank."""
        ours = [load for load in await self._loads(timeout_s) if load.dp_rank == self.address.rank]
        return Load(
            running=sum(load.num_running_reqs for load in ours),
            waiting=sum(load.num_waiting_reqs for load in ours),
            kv_usage=max((load.token_usage for load in ours), default=0.0),
        )

    def refusal(self, status: int, body: bytes) -> Refusal:
        """As `Engine.refusal`."""
        return refusals.read(status, body, _TOO_LONG)

    def addressed(self, body: bytes, model: str, lora: bool) -> bytes:
        """As `Engine.addressed`. An adapter's name counts only as `lora_path`; with it as `model` alone,
        SGLang answers by the base model."""
        if not lora:
            return body
        start = body.index(b"{") + 1
        return b'%b"lora_path":%b,%b' % (body[:start], orjson.dumps(model), body[start:])

    async def _require_ranks(self, timeout_s: float) -> None:
        """A rank that isn't there would refuse its requests; of one too many, the cache would stay unseen."""
        try:
            ranks = {load.dp_rank for load in await self._loads(timeout_s)}
        except EngineAnswerInvalid:
            return  # a proxy that has no loads: it says nothing of ranks
        if ranks and len(ranks) != self.address.ranks:
            raise EngineAnswerInvalid(
                f"{self.connection.url} has {len(ranks)} data-parallel ranks, not {self.address.ranks}: "
                f"say `ranks: {len(ranks)}` of this replica"
            )

    async def _loads(self, timeout_s: float) -> list[_Load]:
        """Of all ranks: each tells of itself as soon as it is idle for the first time."""
        return (await self._ask("/v1/loads?include=core", _Loads, timeout_s)).loads

    async def _ask(self, path: str, kind: type[T], timeout_s: float) -> T:
        status, answer = await self.connection.fetch(path, timeout_s=timeout_s)
        if status != 200:
            raise EngineAnswerInvalid(f"{self.connection.url}{path} answered {status}")
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineAnswerInvalid(
                f"{self.connection.url}{path} is not what SGLang answers: {error}"
            ) from error
