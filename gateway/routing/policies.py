"""The policies."""

import hashlib
from collections.abc import Sequence
from typing import ClassVar

from gateway.routing.base import Candidate, Policy, RequestContext

_STICKY_TOKENS = 256
"""Prefix by which `sticky` knows a conversation that doesn't name itself."""

_TRIFLE = 0.1
"""Share of a prompt below which a hit is no reason to go anywhere."""


class _InTurns(Policy):
    """Equals take turns."""

    def __init__(self) -> None:
        self._turn = 0

    def chosen(self) -> None:
        """It is the next one's turn."""
        self._turn += 1


class RoundRobin(_InTurns):
    """Each replica in turn."""

    def choose(self, request: RequestContext, candidates: Sequence[Candidate]) -> Candidate:
        """The next one, whatever its load."""
        return candidates[self._turn % len(candidates)]


class LeastLoaded(_InTurns):
    """The replica with the fewest requests running or waiting; equals take turns."""

    def choose(self, request: RequestContext, candidates: Sequence[Candidate]) -> Candidate:
        """The least loaded."""
        return min(self._rotated(candidates), key=lambda candidate: candidate.replica.load)

    def _rotated(self, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        # min takes the first of equals: beginning elsewhere each time spreads them.
        first = self._turn % len(candidates)
        return [*candidates[first:], *candidates[:first]]


class Ttft(LeastLoaded):
    """The replica where the first token is expected soonest, and where getting it costs the others least.

    A request's prefill delays whoever comes after it by as much as itself. So its seconds count twice, once
    for the request and once for the next: a burst of requests with one long prefix then meets on one
    replica until the queue there is as long as computing the prefix a second time, instead of computing it
    everywhere at once.

    A hit of less than a tenth of the prompt counts as none: else one page of a system prompt would draw all
    new conversations to the replica that has it, while another is idle.

    Equal costs (to the millisecond) go to the deepest GPU hit, then to the least loaded.
    """

    wants_prefix: ClassVar[bool] = True

    def choose(self, request: RequestContext, candidates: Sequence[Candidate]) -> Candidate:
        """The least cost."""
        tokens = request.prompt.tokens
        return min(self._rotated(candidates), key=lambda candidate: _cost(candidate, tokens))


def _cost(candidate: Candidate, tokens: int) -> tuple[float, int, int]:
    """The seconds of a prompt of so many tokens, and what decides between equals."""
    left, prefill_s, gpu = candidate.prefill_tokens, candidate.prefill_s, candidate.gpu
    if tokens - left < _TRIFLE * tokens:
        prefill_s, gpu = prefill_s * tokens / left, 0
    others_s = candidate.ttft_s - candidate.prefill_s
    return round(others_s + 2 * prefill_s, 3), -gpu, candidate.replica.load


class DeepestHit(LeastLoaded):
    """The replica with the deepest GPU hit, whatever its queue; for comparison."""

    wants_prefix: ClassVar[bool] = True

    def choose(self, request: RequestContext, candidates: Sequence[Candidate]) -> Candidate:
        """The deepest hit; the least loaded of equals."""
        return min(self._rotated(candidates), key=lambda c: (-c.gpu, c.replica.load))


class Sticky(Policy):
    """The same replica for the same conversation, as long as it is there: rendezvous hashing (Thaler and
    Ravishankar, 1998), so that a replica that comes or goes moves no more than its share.

    The conversation is `prompt_cache_key`, else `user`, else the beginning of the prompt.
    """

    wants_prefix: ClassVar[bool] = True

    def choose(self, request: RequestContext, candidates: Sequence[Candidate]) -> Candidate:
        """The replica whose name hashes highest together with the conversation."""
        conversation = _conversation(request)
        return max(
            candidates,
            key=lambda c: hashlib.blake2b(c.replica.name.encode(), key=conversation, digest_size=8).digest(),
        )


def _conversation(request: RequestContext) -> bytes:
    named = request.body.get("prompt_cache_key") or request.body.get("user")
    if named:
        told = str(named).encode("utf-8", "surrogatepass")
    elif request.prompt.keys is not None:
        told = request.prompt.keys.tokens[:_STICKY_TOKENS].tobytes()
    else:
        told = _beginning(request)
    return hashlib.blake2b(told, digest_size=16).digest()


def _beginning(request: RequestContext) -> bytes:
    for field in ("messages", "prompt", "input"):
        value = request.body.get(field)
        if value:
            first = value[:2] if isinstance(value, list) else value[:1024]
            return str(first)[:1024].encode("utf-8", "surrogatepass")
    return b""


POLICIES: dict[str, type[Policy]] = {
    "ttft": Ttft,
    "deepest_hit": DeepestHit,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "sticky": Sticky,
}


def create_policy(name: str) -> Policy:
    """The policy of this name, as `routing.policy` spells it."""
    return POLICIES[name]()
