"""What an agent asks of the engine that it lives in.

To give another engine an agent: subclass `Inside`, say what the engine is and what its pages are called, and
hand it to `engine_adapters.agent.server.Agent`. An engine with a host tier or a way of loading of its own
overrides `look`, `plan` and `prefetch`, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cache.finding import Look
from cache.hierarchy import Hierarchy
from cache.keys import Namespace, Page, tenant_tag
from cache.plan import Match, Plan
from cache.prefix import Tokens, prefix_keys, seed
from cache.tickets import Progress
from engine_adapters.wire import TierInfo, TierName


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an engine is. Of `tiers` only those that the hierarchy doesn't know, such as `gpu`."""

    engine: str
    engine_version: str
    model: str
    namespace: Namespace
    loras: Mapping[str, Namespace] = field(default_factory=dict)
    """By name, those seen so far."""
    store_id: str = ""
    tiers: Mapping[TierName, TierInfo] = field(default_factory=dict)
    events: str = ""
    replay: str = ""
    retired: bool = False
    """Whether nothing is loaded from its tiers any more."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's whole pages under the names that the engine gives them."""

    namespace: Namespace
    keys: Sequence[bytes]
    tokens: Tokens
    page_tokens: int
    salt: str | None = None
    lora: str | None = None

    def pages(self, start: int, stop: int) -> list[Page]:
        """Its pages of these numbers, as the tiers want them told."""
        size, tenant = self.page_tokens, tenant_tag(self.salt)
        names = prefix_keys(self.tokens[: stop * size], size, seed(self.lora, self.salt))[start:].tolist()
        return [
            Page(key, name, (number + 1) * size, tenant)
            for number, (key, name) in enumerate(zip(self.keys[start:stop], names, strict=True), start)
        ]


class Looking(Protocol):
    """A look-up that may still wait for a remote store; `cache.finding.Look` is one."""

    @property
    def pending(self) -> bool:
        """Whether more may still be found."""

    @property
    def complete(self) -> bool:
        """Whether every tier has answered."""

    def match(self) -> Match:
        """What is known by now."""


class Loading(Protocol):
    """A prefetch under way; `cache.tickets.Ticket` is one."""

    def __len__(self) -> int:
        """Pages asked for."""

    def progress(self) -> Progress:
        """Where it stands."""

    def extend(self, seconds: float) -> None:
        """Keep at it, and its pages, for `seconds` from now, if that is longer than so far."""

    def cancel(self) -> None:
        """Stop what can be stopped, and let the pages go."""


class Inside(ABC):
    """An engine from inside. Called on the agent's thread, in the process of the engine's scheduler.

    Nothing here may block, or hold the interpreter for more than some hundred microseconds at a time.
    """

    def __init__(self, tiers: Hierarchy) -> None:
        self.tiers = tiers

    @abstractmethod
    def facts(self) -> Facts:
        """What the engine is, and what is known of its LoRAs by now."""

    @abstractmethod
    def prompt(self, tokens: Tokens, salt: str | None, lora: str | None) -> Prompt:
        """What a request's pages would be called: as the engine itself names them, salt and LoRA included.

        Raises AgentRefused: `unknown_lora` for an adapter whose content isn't known (yet).
        """

    def look(self, prompt: Prompt, start: int) -> Looking:
        """Find a prompt's pages from number `start` on."""
        found: Look = self.tiers.look(prompt.namespace, prompt.keys[start:])
        return found

    def plan(self, match: Match, computed: int, prefetch: bool) -> Plan:
        """What of that a request would load, or a prefetch may; `computed` tokens of the first page are
        there already. Counted nowhere."""
        return self.tiers.plan(match, computed, prefetch=prefetch, counted=False)

    def prefetch(self, prompt: Prompt, start: int, plan: Plan, seconds: float) -> Loading:
        """Bring a plan's pages up, and keep them for `seconds`. It counts from the prompt's page `start`."""
        return self.tiers.prefetch(plan, prompt.pages(start + plan.start, start + plan.cut), seconds)
