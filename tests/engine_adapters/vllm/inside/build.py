"""Requests over small hierarchies."""

from collections.abc import Sequence

from cache.hierarchy import Hierarchy
from cache.keys import Namespace
from cache.testing import SPACE
from engine_adapters.vllm.inside.loads import Load
from engine_adapters.vllm.inside.requests import Facts, Request
from tests.cache.build import keys

PAGE_TOKENS = 16
TOKENS = tuple(range(1000, 1000 + 64 * PAGE_TOKENS))


def request(
    tokens: Sequence[int] = TOKENS, salt: str | None = None, namespace: Namespace | None = SPACE
) -> Request:
    return Request(Facts(tokens=tokens, salt=salt), PAGE_TOKENS, lambda: namespace)


def load_of(tiers: Hierarchy, load_seconds: float = 5.0) -> Load:
    return Load(tiers, request(), PAGE_TOKENS, load_seconds)


__all__ = ["keys", "load_of", "request"]
