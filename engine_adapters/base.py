"""What the gateway asks of an engine over HTTP, whatever kind it is."""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import msgspec
import zmq.asyncio

from engine_adapters.agent.keys import Keys
from engine_adapters.errors import EngineAnswerInvalid
from engine_adapters.events import Origin, Sink
from engine_adapters.http import Connection, Headers
from engine_adapters.subscriber import Endpoints, Subscriber
from engine_adapters.wire import Endpoints as AgentEndpoints
from engine_adapters.wire import endpoints


class ModelCard(NamedTuple):
    """One entry of an engine's `/v1/models`."""

    id: str
    root: str | None
    """Folder or hub name that the weights and the tokenizer come from; of a LoRA, the adapter's."""
    parent: str | None
    """Of a LoRA: the id of its base model."""
    max_model_len: int | None
    """Most tokens of prompt and answer together."""
    card: dict[str, Any]
    """The entry as the engine gave it."""


class Load(NamedTuple):
    """An engine's own account of its work."""

    running: int
    waiting: int
    kv_usage: float
    """Share of the KV cache in use, 0 to 1."""


class Refusal(NamedTuple):
    """An engine's error answer, in the terms of OpenAI's envelope."""

    message: str
    type: str
    param: str | None
    code: str | None


class AgentAddress(NamedTuple):
    """Where one engine's agent is reached, and with which keys."""

    control: str
    keys: Keys | None = None
    rank: int = 0

    @property
    def endpoints(self) -> AgentEndpoints:
        """The sockets of this rank's agent."""
        return endpoints(self.control, self.rank)


class Address(NamedTuple):
    """Where one replica is reached."""

    connection: Connection
    events: Endpoints | None = None
    """Of its KV events; None where it sends none. Of a data-parallel server, those of rank 0."""
    rank: int = 0
    """Of data parallelism."""
    ranks: int = 1
    agent: AgentAddress | None = None
    """Of its agent; None where it has none. Of a data-parallel server, that of rank 0."""

    @property
    def rank_agent(self) -> AgentAddress | None:
        """Where this rank's agent is."""
        return self.agent and self.agent._replace(rank=self.rank)

    @property
    def rank_events(self) -> Endpoints | None:
        """Where this rank's KV events are."""
        return self.events and self.events.of_rank(self.rank)


class Engine(ABC):
    """One engine server, or one data-parallel rank of it, seen through HTTP and its KV events.

    Methods raise `EngineError`s only.
    """

    kind: ClassVar[str]
    refuses_unknown_ids: ClassVar[bool] = True
    """Whether it refuses token ids outside the vocabulary; else the gateway must."""

    def __init__(self, address: Address) -> None:
        self.connection = address.connection
        self.address = address

    @property
    def headers(self) -> Headers:
        """What requests to this rank carry besides their own headers: the rank, where the server has several;
        without it, the server would choose one itself."""
        address = self.address
        return [(b"x-data-parallel-rank", b"%d" % address.rank)] if address.ranks > 1 else []

    def addressed(self, body: bytes, model: str, lora: bool) -> bytes:
        """A request's body as this engine wants it.

        Args:
            model: the name in the body.
            lora: whether that is an adapter's.
        """
        return body

    @abstractmethod
    async def check_health(self, *, timeout_s: float) -> None:
        """Return if the engine can serve; raise why not."""

    @abstractmethod
    async def load(self, *, timeout_s: float) -> Load:
        """The engine's queue and cache use now."""

    @abstractmethod
    def refusal(self, status: int, body: bytes) -> Refusal:
        """Read an error answer, whatever its shape; never raises."""

    @abstractmethod
    def events(self, origin: Origin, sink: Sink, context: zmq.asyncio.Context) -> Subscriber | None:
        """What follows this engine's KV events into `sink`, or None where it sends none."""

    async def models(self, *, timeout_s: float) -> list[ModelCard]:
        """The models that the engine serves, LoRA adapters included."""
        status, body = await self.connection.fetch("/v1/models", timeout_s=timeout_s)
        if status != 200:
            raise EngineAnswerInvalid(f"{self.connection.url}/v1/models answered {status}")
        try:
            cards = [_card(raw) for raw in msgspec.json.decode(body, type=_Models).data]
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineAnswerInvalid(
                f"{self.connection.url}/v1/models is not a list of models: {error}"
            ) from error
        for card in cards:
            self._require_kind(card.card.get("owned_by"))
        return cards

    def _require_kind(self, owner: object) -> None:
        if owner in _OWNERS and owner != self.kind:
            raise EngineAnswerInvalid(
                f"{self.connection.url} is an engine of the kind {owner}, not {self.kind}: "
                f"say `engine: {owner}` of this replica (--replica {owner}+{self.connection.url})"
            )


_OWNERS = frozenset({"vllm", "sglang"})
"""What engines of these kinds say of a model, as `owned_by`. Another word, maybe a proxy's, tells nothing."""


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


def _card(raw: msgspec.Raw) -> ModelCard:
    card = msgspec.json.decode(raw, type=_Card)
    return ModelCard(card.id, card.root, card.parent, card.max_model_len, msgspec.json.decode(raw))


class Metrics:
    """Values of a Prometheus text page, found without parsing the page.

    An engine's page has thousands of lines and we want three: a line is found by its name, and its last
    field is the value.
    """

    def __init__(self, page: bytes) -> None:
        self._page = b"\n" + page

    def values(self, name: str, label: bytes = b"") -> list[float]:
        """The values of `name`, one a label set that contains `label` (`key="value"`); maybe none."""
        needle = b"\n" + name.encode()
        found: list[float] = []
        at = self._page.find(needle)
        while at >= 0:
            end = self._page.find(b"\n", at + 1)
            line = self._page[at + 1 : end if end >= 0 else len(self._page)]
            if line[len(needle) - 1 : len(needle)] in (b"{", b" ") and label in line:
                try:
                    value = float(line.rsplit(b" ", 1)[-1])
                except ValueError as error:
                    raise EngineAnswerInvalid(f"{name} has no number on the metrics page") from error
                if math.isfinite(value):
                    found.append(value)
            at = self._page.find(needle, at + 1)
        return found
