"""From a request and the replicas that may serve it to one of them, and the reasons."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.fleet import Charge, Replica
from gateway.fleet.speed import PrefillSpeed
from gateway.routing.base import Candidate, Policy, Prompt, RequestContext
from gateway.routing.loading import Held, estimate
from gateway.usage import Usage

Matches = Mapping[str, Held]
"""Replica → what it holds of a prompt."""

NOTHING = Held((0, 0, 0, 0))


class Decision(NamedTuple):
    """Where a request goes, and what it was chosen from."""

    chosen: Candidate
    candidates: Sequence[Candidate]


class Passage:
    """A routed request until its end: its charge on the replica, and what the replica's speed is learned
    from.

    The charge's prefill is lifted at the first token. A whole (not streamed) answer doesn't show it, so
    there the estimate stands in.
    """

    def __init__(self, chosen: Candidate, *, streamed: bool) -> None:
        replica = chosen.replica
        self.chosen = chosen
        self._ahead = replica.prefill_tokens
        self._charge: Charge = replica.charge(chosen.prefill_tokens)
        self._streamed = streamed
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._started = loop.time()
        self._first_token_s = 0.0
        self._lift = None if streamed else loop.call_later(chosen.ttft_s, self._charge.prefilled)

    def first_chunk(self) -> None:
        """The answer's first bytes are here."""
        self._first_token_s = self._loop.time() - self._started
        self._charge.prefilled()

    def end(self, usage: Usage | None) -> None:
        """The request is over, however it ended; with its usage, it has something to teach."""
        self._charge.release()
        if self._lift is not None:
            self._lift.cancel()
        if usage is None or not self._streamed or not self._first_token_s:
            return
        computed = usage.prompt_tokens - (usage.cached_tokens or 0)
        seconds = self._first_token_s - self.chosen.load_s
        self.chosen.replica.speed.observe(self._ahead + computed, seconds, time.monotonic())


def decide(
    policy: Policy, request: RequestContext, replicas: Sequence[Replica], matches: Matches
) -> Decision:
    """Choose a replica; nothing is charged yet.

    Args:
        replicas: at least one, all up, all serving the model.
        matches: a replica that isn't there holds nothing.
    """
    now = time.monotonic()
    fastest = max((replica.speed for replica in replicas), key=lambda speed: speed.rate * speed.measured)
    candidates = [
        _candidate(
            request.prompt,
            replica,
            replica.speed if replica.speed.trusted(now) else fastest,
            matches.get(replica.name, NOTHING),
        )
        for replica in replicas
    ]
    return Decision(policy.choose(request, candidates), candidates)


def _candidate(prompt: Prompt, replica: Replica, speed: PrefillSpeed, held: Held) -> Candidate:
    loading = estimate(held, replica.agent.economics if replica.agent is not None else None)
    # What an engine loads it doesn't compute; the speed is learned from the rest alone.
    rest = max(prompt.tokens - sum(loading.cached), 1)
    return Candidate(
        replica=replica,
        held=held.tokens,
        cached=loading.cached,
        prefill_tokens=rest,
        queue_s=speed.seconds(replica.prefill_tokens),
        load_s=loading.seconds,
        prefill_s=speed.seconds(rest),
        overhead_s=speed.overhead_s,
    )
