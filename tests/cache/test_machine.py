"""The hierarchy against a dict, under any order of calls."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cache.keys import Namespace
from cache.policies import Back, Selective, Through, WritePolicy
from cache.testing import BASE, content, page
from cache.tickets import Ticket
from cache.tiers.base import Tier
from cache.tiers.slots import ABSENT
from tests.cache.build import Rig, rig

SPACES = (BASE.namespace(), BASE.namespace(lora="adapter"))
starts = st.integers(0, 30)
counts = st.integers(1, 6)
spaces = st.sampled_from([0, 1])


class HierarchyMachine(RuleBasedStateMachine):
    """Model: page → its version, for every page that was ever stored and not cleared since.

    The hierarchy may forget a page (it is a cache), but never has one that the model hasn't, nor other bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hpkv-machine-"))
        self.model: dict[tuple[Namespace, int], int] = {}
        self.tickets: list[tuple[Ticket, Namespace, list[int]]] = []

    @initialize(write=st.sampled_from([Through(), Back(), Selective()]), slots=st.integers(4, 12))
    def open(self, write: WritePolicy, slots: int) -> None:
        self.write, self.slots = write, slots
        self.rig: Rig = rig(self.folder, slots=slots, write=write, cap=192 << 10)

    @rule(space=spaces, start=starts, count=counts)
    def store(self, space: int, start: int, count: int) -> None:
        numbers = list(range(start, start + count))
        name = SPACES[space]
        self.rig.tiers.store(
            name,
            [page(n, tenant=n % 3) for n in numbers],
            [[content(n + 1000 * space)] for n in numbers],
        )
        self.model |= {(name, n): n + 1000 * space for n in numbers}

    @rule(space=spaces, start=starts, count=counts, prefetch=st.booleans())
    def load(self, space: int, start: int, count: int, prefetch: bool) -> None:
        name, numbers = SPACES[space], list(range(start, start + count))
        match = self.rig.tiers.match(name, [page(n).key for n in numbers])
        assert all((name, n) in self.model for n in numbers[: match.pages])
        plan = self.rig.tiers.plan(match, prefetch=prefetch)
        wanted = [page(n, tenant=n % 3) for n in numbers[: plan.cut]]
        call = self.rig.tiers.prefetch if prefetch else self.rig.tiers.load
        self.tickets.append((call(plan, wanted, 10.0), name, numbers))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def use(self, data: Any) -> None:
        """What a ticket says is ready stays, byte for byte, until it is released, whatever happens."""
        ticket, name, numbers = self.tickets.pop(data.draw(st.integers(0, len(self.tickets) - 1)))
        ready = ticket.wait(5).ready
        found = self.rig.tiers.slots(name, [page(n).key for n in numbers[:ready]])
        assert self.rig.host is not None
        for number, slot in zip(numbers, found, strict=False):
            if slot == ABSENT:
                assert (name, number) not in self.model or self.cleared, "a leased page was evicted"
            else:
                assert self.rig.host.page(slot) == content(self.model[name, number])
        ticket.release()

    cleared = False

    @precondition(lambda self: self.tickets)
    @rule()
    def cancel(self) -> None:
        self.tickets.pop()[0].cancel()

    @rule(tenant=st.sampled_from([None, 0, 1, 2]), tier=st.sampled_from([None, Tier.HOST, Tier.SSD]))
    def clear(self, tenant: int | None, tier: Tier | None) -> None:
        self.cleared = True
        self.rig.tiers.clear(tier, tenant)
        if tier is None:
            self.model = {name: v for name, v in self.model.items() if tenant not in (None, name[1] % 3)}

    @rule()
    def restart(self) -> None:
        """`host` is lost; `ssd` has nothing that wasn't stored."""
        for ticket, _, _ in self.tickets:
            ticket.cancel()
        self.tickets.clear()
        self.rig.tiers.drain(5)
        before = self.rig.ssd.usage().pages
        self.rig.tiers.close()
        self.rig = rig(self.folder, slots=self.slots, write=self.write, cap=192 << 10)
        assert self.rig.ssd.usage().pages >= before

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "rig"):
            self.rig.tiers.audit()
            self.rig.ssd.audit()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            for ticket, _, _ in self.tickets:
                ticket.cancel()
            assert self.rig.tiers.drain(5)
            assert self.rig.host is not None
            assert self.rig.host.book.held == 0
            self.rig.tiers.close()
        shutil.rmtree(self.folder)


HierarchyMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestHierarchyMachine = HierarchyMachine.TestCase
