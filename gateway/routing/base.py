"""The contract of routing policies, and what they choose from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from cache.prefix import PrefixKeys
from engine_adapters.events import Tier
from gateway.fleet import Replica
from gateway.routing.loading import Tiers

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

    def common(self, other: "Prompt") -> "Prompt":
        """The beginning that two prompts have in common; unknown if one of them is."""
        if self.keys is None or other.keys is None:
            return self if self.keys is None else other
        keys = _common(self.keys, other.keys)
        kinds = self.otherwise.keys() | other.otherwise.keys()
        otherwise = {kind: _common(self.keys_of(kind), other.keys_of(kind)) for kind in kinds}
        return Prompt(0 if keys is None else len(keys), keys, otherwise=otherwise)


def _common(one: PrefixKeys | None, other: PrefixKeys | None) -> PrefixKeys | None:
    if one is None or other is None:
        return None
    shortest = min(len(one), len(other))
    differs = np.flatnonzero(one.tokens[:shortest] != other.tokens[:shortest])
    return PrefixKeys(one.tokens[: differs[0] if len(differs) else shortest], one.seed)


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
        held: leading tokens of the prompt that lie there, by tier in the order of `Tier`.
        cached: those of them that it would take instead of computing them.
        queue_s: until the prefill queued ahead is done.
        load_s: of bringing up what is cached below the engine's own tiers.
        prefill_s: of what isn't cached.
        overhead_s: what a request takes there with nothing to prefill.
    """

    replica: Replica
    held: Tiers
    cached: Tiers
    prefill_tokens: int
    queue_s: float
    load_s: float
    prefill_s: float
    overhead_s: float

    @property
    def ttft_s(self) -> float:
        """Estimated time to first token."""
        return self.queue_s + self.load_s + self.prefill_s + self.overhead_s

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
        """Choose among `candidates`: at least one, all up, all serving the model.

        Changes nothing: routes are also chosen to be explained.
        """

    def chosen(self) -> None:  # noqa: B027  (most policies give no turns)
        """A request goes where it was to go: if equals take turns, it is the next one's now."""
