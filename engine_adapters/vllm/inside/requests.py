"""What the tiers have to know of one request: whose it is, and what its pages are called."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cache.keys import Namespace, Page, tenant_tag
from cache.prefix import Extra, prefix_keys, seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A request as the engine was given it."""

    tokens: Sequence[int]
    """The engine's own list: it grows as the answer does."""
    salt: str | None = None
    lora: str | None = None
    """The adapter's name, as the index knows it."""
    extras: tuple[Extra, ...] = ()
    """What beside token ids its KV depends on: images, by place."""


class Request:
    """Names a request's pages; prefix keys are computed once each, as pages are asked for."""

    def __init__(self, facts: Facts, page_tokens: int, namespace: Callable[[], Namespace | None]) -> None:
        self._facts = facts
        self._page_tokens = page_tokens
        self._tenant = tenant_tag(facts.salt)
        self._prefix_keys: list[int] = []
        self._seed = seed(facts.lora, facts.salt)
        self._namespace = namespace

    @property
    def namespace(self) -> Namespace | None:
        """Where its pages belong; None while, or as long as, that isn't known: it is served without tiers."""
        return self._namespace()

    def pages(self, numbers: Iterable[int], keys: Iterable[bytes]) -> list[Page]:
        """Its pages of these numbers, counted from the prompt's start, under the engine's keys."""
        return [self._page(number, key) for number, key in zip(numbers, keys, strict=True)]

    def _page(self, number: int, key: bytes) -> Page:
        while number >= len(self._prefix_keys):
            self._extend()
        return Page(key, self._prefix_keys[number], (number + 1) * self._page_tokens, self._tenant)

    def _extend(self) -> None:
        """Compute the prefix keys of all whole pages that there are by now."""
        size, known = self._page_tokens, len(self._prefix_keys)
        tokens = self._facts.tokens[known * size : len(self._facts.tokens) // size * size]
        base = self._prefix_keys[-1] if known else self._seed
        more = prefix_keys(tokens, size, base, start=known * size, extras=self._facts.extras)
        if not len(more):
            raise IndexError(f"a page was named that {len(self._facts.tokens)} tokens don't fill")
        self._prefix_keys += more.tolist()
