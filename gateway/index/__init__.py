"""Which replica holds which prefixes, in which tier.

`Index` answers; `Feed` is how streams of events reach it on the event loop.
"""

from gateway.index.errors import IndexFullError
from gateway.index.feed import Feed
from gateway.index.index import Index, IndexState
from gateway.index.match import Match, Span
from gateway.index.residency import WORD
from gateway.index.targets import Store
from gateway.index.upkeep import Lifetimes

__all__ = ["WORD", "Feed", "Index", "IndexFullError", "IndexState", "Lifetimes", "Match", "Span", "Store"]
