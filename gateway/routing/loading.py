"""How much of a prompt a replica would load instead of computing it, estimated by its agent's own rule.

The agent alone decides, when the request is there. Its rule is the plan of docs/cache.md, said here in
tokens: of the places where a span ends, the one up to which loading saves most time over computing, if there
is as much to load as the threshold asks for.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine_adapters.events import Tier
from gateway.fleet.agent import Economics
from gateway.index import Span

Tiers = tuple[int, int, int, int]
"""Tokens by tier, in the order of `Tier`."""


class Held(NamedTuple):
    """What a replica holds of a prompt from its start on: `spans` where they lie, if some do below `gpu`."""

    tokens: Tiers
    spans: Sequence[Span] = ()


class Loading(NamedTuple):
    """What a replica takes of a prompt instead of computing it."""

    cached: Tiers
    """Leading tokens, by where they come from; so many the engine will report, all tiers together."""
    seconds: float = 0.0
    """Of loading those that don't lie in the engine's own tiers."""


def estimate(held: Held, costs: Economics | None) -> Loading:
    """What a replica takes of what it holds; `costs` are its agent's, None without one.

    Without an agent, only what an engine itself tells of can be counted on: `gpu`, and its own host tier.
    """
    gpu, host, ssd, shared = held.tokens
    if not (host or ssd or shared):
        return Loading(held.tokens)
    if costs is None:
        return Loading((gpu, host, 0, 0))
    computed = _computed(held.spans, costs)
    cut, seconds = choose(held.spans, computed, costs)
    return Loading(_tokens(held.spans, cut), seconds)


def choose(spans: Sequence[Span], computed: int, costs: Economics) -> tuple[int, float]:
    """Up to which token the agent would load, and how long that takes; `computed` and 0 if it wouldn't.

    `computed` tokens the engine has without loading. A page that it has in part is loaded whole, and of less
    than a page vLLM takes nothing.
    """
    best, cut, took = 0.0, computed, 0.0
    seconds, at = 0.0, computed // costs.page_tokens * costs.page_tokens
    for span in spans:
        if span.end <= computed:
            continue
        rate = costs.tokens_per_s[span.tier]
        if not rate or not costs.prefill_tokens_per_s:
            break
        seconds += (span.end - at) / rate
        at = span.end
        gain = span.end - computed
        saved = gain / costs.prefill_tokens_per_s - seconds
        if gain >= max(costs.threshold, costs.page_tokens) and saved > best:
            best, cut, took = saved, span.end, seconds
    return cut, took


def _computed(spans: Sequence[Span], costs: Economics) -> int:
    """Leading tokens in the engine's own tiers: below `host` nothing is, even if nothing is loaded."""
    computed = 0
    for span in spans:
        if costs.tokens_per_s[span.tier] or span.tier > Tier.HOST:
            break
        computed = span.end
    return computed


def _tokens(spans: Sequence[Span], cut: int) -> Tiers:
    tokens = [0] * len(Tier)
    for span in spans:
        tokens[span.tier] += max(min(span.end, cut) - span.start, 0)
    return tokens[0], tokens[1], tokens[2], tokens[3]
