"""One request's way up: look, decide, load, and keep the pages until they are copied."""

import enum
import math
import time
from collections.abc import Callable, Sequence

from cache.finding import Look
from cache.hierarchy import Hierarchy
from cache.plan import Match, Plan
from cache.tickets import Phase, Ticket
from cache.tiers.base import Tier

from .requests import Request


class Answer(enum.Enum):
    """What a request learns of one page."""

    READY = enum.auto()
    """In `host`, kept until it is copied or the request does without it."""
    WAIT = enum.auto()
    MISS = enum.auto()


class Load:
    """The pages that one request takes from the tiers. Its methods don't block."""

    def __init__(
        self,
        tiers: Hierarchy,
        request: Request,
        page_tokens: int,
        load_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tiers = tiers
        self._request = request
        self._page_tokens = page_tokens
        self._load_seconds = load_seconds
        self._clock = clock
        self._until = math.inf
        self._asked: tuple[int, int] | None = None
        self._look: Look | None = None
        self._plan: Plan | None = None
        self._ticket: Ticket | None = None
        self._slots: dict[bytes, int] = {}
        self._sources: dict[bytes, Tier] = {}
        self.copying = False
        """Whether the engine copies its pages just now."""

    def plan(self, keys: Sequence[bytes], computed_tokens: int) -> bool:
        """Decide what to load beyond what the engine has, once for each question, and start it.

        `keys` are all of the request's. Returns whether the answers are known; else ask again.
        """
        if self.copying:
            return True
        if self._asked != (computed_tokens, len(keys)):
            self._begin(keys, computed_tokens)
        if self._look is not None:
            if self._look.pending:
                return False
            self._decide(self._look.match())
        if self._ticket is not None and not self._slots:
            if self._ticket.progress().phase is Phase.RUNNING:
                return False
            self._claim()
        return True

    def answer(self, key: bytes) -> Answer:
        """Read the plan."""
        if key in self._slots:
            return Answer.READY
        known = self._slots or (self._look is None and self._ticket is None)
        return Answer.MISS if known else Answer.WAIT

    def source(self, key: bytes) -> Tier:
        """The tier in which a ready page was found."""
        return self._sources[key]

    def copy(self, keys: Sequence[bytes]) -> list[int]:
        """Host slots of ready pages, of which the engine begins a copy."""
        self.copying = True
        return [self._slots[key] for key in keys]

    def copied(self) -> None:
        """The copy has ended."""
        self.copying = False
        self.release()

    def release(self) -> None:
        """Let all pages go, unless they are being copied."""
        if not self.copying:
            ticket = self.give_up()
            if ticket is not None:
                ticket.release()

    def give_up(self) -> Ticket | None:
        """Forget the plan; the ticket, if there is one, must still be released."""
        ticket, self._ticket = self._ticket, None
        self._asked = self._look = self._plan = None
        self._slots, self._sources, self.copying = {}, {}, False
        return ticket

    def _begin(self, keys: Sequence[bytes], computed_tokens: int) -> None:
        if self._asked is None:  # it ran since, or never asked: this is another wait
            self._until = math.inf
        self.release()
        self._asked = computed_tokens, len(keys)
        namespace = self._request.namespace
        if namespace is None:
            return
        start = computed_tokens // self._page_tokens
        if start:
            self._tiers.touch(namespace, keys[:start])
        if start < len(keys):
            self._look = self._tiers.look(namespace, keys[start:])

    def _decide(self, match: Match) -> None:
        """Spans and cut are counted from the first page that the engine hasn't got whole."""
        assert self._asked is not None
        self._look = None
        start, computed = divmod(self._asked[0], self._page_tokens)
        plan = self._tiers.plan(match, computed)
        if not plan.pages:
            return
        now = self._clock()
        self._until = min(self._until, now + self._load_seconds)
        pages = self._request.pages(range(start, start + plan.cut), match.keys[: plan.cut])
        self._plan = plan
        self._ticket = self._tiers.load(plan, pages, max(self._until - now, 0.0))

    def _claim(self) -> None:
        """All that came in time is kept; if nothing did, the request does without."""
        assert self._ticket is not None
        assert self._plan is not None
        plan, keys = self._plan, self._plan.match.keys
        self._slots = dict(zip(keys, self._tiers.claim(self._ticket, plan), strict=False))
        self._sources = {key: span.tier for span in plan.spans for key in keys[span.start : span.stop]}
        if not self._slots:
            self._ticket.release()
            self._ticket = None
