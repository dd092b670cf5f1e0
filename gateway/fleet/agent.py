"""What is known of a replica's agent: whether it answers, who it is, and by what it decides what to load."""

import logging
from typing import NamedTuple

from engine_adapters.agent.client import AgentClient
from engine_adapters.events import Tier
from engine_adapters.wire import Identity, Statistics, TierName

log = logging.getLogger(__name__)

TIER_NAMES: dict[Tier, TierName] = {
    Tier.GPU: "gpu",
    Tier.HOST: "host",
    Tier.SSD: "ssd",
    Tier.SHARED: "shared",
}


class Economics(NamedTuple):
    """By what an agent decides how much to load; all of it as it believes now."""

    page_tokens: int
    threshold: int
    """Tokens; fewer aren't loaded."""
    prefill_tokens_per_s: float
    tokens_per_s: tuple[float, float, float, float]
    """By tier, in the order of `Tier`; 0 for a tier that isn't the agent's: what lies there isn't loaded."""


class Agent:
    """A replica's agent. Whoever follows it keeps this true; a replica whose agent is lost serves as one
    without.

    Attributes:
        client: asks it.
        identity: None until it has answered, and kept when it is lost.
        trouble: why it isn't believed, for operators; empty where it is.
        economics: None while it isn't believed.
    """

    def __init__(self, replica: str, client: AgentClient) -> None:
        self.client = client
        self.identity: Identity | None = None
        self.statistics: Statistics | None = None
        self.economics: Economics | None = None
        self.trouble = "it hasn't answered yet"
        self._replica = replica

    @property
    def alive(self) -> bool:
        """Whether it answers, and is believed."""
        return not self.trouble

    @property
    def page_tokens(self) -> int:
        """Tokens a page of its tiers; 1 before it has answered."""
        return self.identity.page_tokens if self.identity is not None else 1

    @property
    def threshold(self) -> int:
        """Tokens; it loads no fewer. 0 while it isn't believed."""
        return self.economics.threshold if self.economics is not None else 0

    @property
    def rates(self) -> dict[Tier, float]:
        """Tokens/s that it is believed to load, of its own tiers; none while it isn't believed."""
        if self.economics is None:
            return {}
        return {tier: rate for tier, rate in zip(Tier, self.economics.tokens_per_s, strict=True) if rate}

    def answered(self, identity: Identity, statistics: Statistics) -> None:
        """It said who and how it is."""
        if self.trouble:
            log.info("agent is there", extra={"replica": self._replica, "epoch": identity.epoch})
        self.identity, self.statistics, self.trouble = identity, statistics, ""
        rates = [
            statistics.tiers[name].tokens_per_s if (name := TIER_NAMES[tier]) in statistics.tiers else 0.0
            for tier in (Tier.HOST, Tier.SSD, Tier.SHARED)
        ]
        self.economics = Economics(
            identity.page_tokens,
            statistics.threshold,
            statistics.prefill_tokens_per_s,
            (0.0, rates[0], rates[1], rates[2]),
        )

    def lose(self, reason: str) -> None:
        """It isn't believed any more, or not yet."""
        if reason != self.trouble:
            log.warning("no agent", extra={"replica": self._replica, "reason": reason})
        self.trouble = reason
        self.economics = None
