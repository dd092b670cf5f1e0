"""The contract of routing policies, and what they choose from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from cache.prefix import PrefixKeys
from engine_adapters.events import Tier
from gateway.fleet import Replica

_ALL_ALIKE: Mapping[str, PrefixKeys | None] = {}


class Prompt(NamedTuple):
    """What is known of a request's prompt."""

    tokens: int
    """Its length; an estimate where the ids are unknown."""
    keys: PrefixKeys | None = None
    """None where the ids are unknown."""
    unknown: str = ""
    """Why they are."""
    otherwise: Mapping[str, PrefixKeys | None] = _ALL_ALIKE
    """Of the kinds of engines, in a mixed fleet, that make other ids of the request, or unknown ones."""

    def keys_of(self, kind: str) -> PrefixKeys | None:
        """The keys of what an engine of this kind computes."""
        return self.otherwise.get(kind, self.keys) if self.otherwise else self.keys


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a policy may know of a request."""

    request_id: str
    path: str
    model: str
    body: Mapping[str, Any]
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as one request sees it.

    Attributes:
        cached: leading tokens of the prompt that lie there, by tier in the order of `Tier`.
        queue_s: until the prefill queued ahead is done.
        prefill_s: of what isn't cached.
        overhead_s: what a request takes there with nothing to prefill.
    """

    replica: Replica
    cached: tuple[int, int, int, int]
    prefill_tokens: int
    queue_s: float
    prefill_s: float
    overhead_s: float

    @property
    def ttft_s(self) -> float:
        """Estimated time to first token."""
        return self.queue_s + self.prefill_s + self.overhead_s

    @property
    def gpu(self) -> int:
        """Cached tokens in the engine's own cache."""
        return self.cached[Tier.GPU]


class Policy(ABC):
    """Chooses a replica for each request. Called on the event loop: it may not block."""

    wants_prefix: ClassVar[bool] = False
    """Whether the choice depends on what lies where, so that prompts are worth tokenizing."""

    @abstractmethod
    def choose(self, request: RequestContext, candidates: Sequence[Candidate]) -> Candidate:
        """Choose among `candidates`: at least one, all up, all serving the model."""
