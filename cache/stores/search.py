"""How many leading pages of a prompt a store has, in few questions.

Whoever stores a page has stored those before it, so the pages of a prompt that a store has are a prefix of
it, but for the odd hole. Asking for `FAN` pages at once, spread over what is unknown, finds the end of 1,000
pages in two rounds and 64 questions. A hole is found by the read that falls into it, and remembered.
"""

from collections.abc import Callable, Sequence

from cache.stores.presence import Hint

FAN = 32


def leading(known: Sequence[Hint], probe: Callable[[list[int]], Sequence[bool]]) -> int:
    """How many leading pages are there, believing that pages come as a prefix.

    `known` says what is known of each page; `probe` asks for pages by their places, in rising order.
    """
    high = next((at for at, hint in enumerate(known) if hint is Hint.GONE), len(known))
    low = next((at + 1 for at in reversed(range(high)) if known[at] is Hint.THERE), 0)
    while low < high:
        places = _spread(low, high)
        answers = probe(places)
        missing = next((place for place, there in zip(places, answers, strict=True) if not there), high)
        low = next((place + 1 for place in reversed(places) if place < missing), low)
        high = missing
    return high


def _spread(low: int, high: int) -> list[int]:
    """At most `FAN` places from `low` to `high` - 1, both among them."""
    count = high - low
    if count <= FAN:
        return list(range(low, high))
    return sorted({low + (count - 1) * step // (FAN - 1) for step in range(FAN)})
