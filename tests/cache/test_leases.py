import math

from cache.leases import Leases
from cache.testing import SPACE, page
from cache.tiers.base import Hold
from cache.tiers.slots import Book


class Counted(Hold):
    drops = 0

    def drop(self) -> None:
        self.drops += 1


def book(pages: int) -> Book:
    made = Book(8)
    for number in range(pages):
        made.publish(made.take(SPACE, page(number)), used=1)
    return made


def test_two_leases_on_one_page() -> None:
    pages = book(3)
    leases = Leases(pages)
    one, two = leases.take(10.0), leases.take(20.0)
    one.add([0, 1, 0])
    one.add([1])
    two.add([1, 2])
    assert pages.victims(3) == []
    leases.release(one)
    leases.release(one)
    assert pages.victims(3) == [0]
    leases.release(two)
    assert pages.held == 0
    pages.audit()


def test_deadlines() -> None:
    pages = book(3)
    leases = Leases(pages)
    for slot, deadline in enumerate((3.0, 1.0, 2.0)):
        leases.take(deadline).add([slot])
    assert leases.expire(0.9) == 0
    assert leases.expire(2.0) == 2
    assert pages.held == 1
    assert leases.expire(99.0) == 1
    assert len(leases) == 0


def test_an_extended_lease_ends_later_or_never() -> None:
    pages = book(2)
    leases = Leases(pages)
    later, never = leases.take(1.0), leases.take(1.0)
    later.add([0])
    never.add([1])
    leases.extend(later, 2.0)
    leases.extend(later, 1.5)
    leases.extend(never, math.inf)
    assert leases.expire(1.9) == 0
    assert leases.expire(2.0) == 1
    assert leases.expire(1e9) == 0
    assert pages.held == 1
    leases.release(never)
    leases.extend(never, math.inf)
    assert (pages.held, len(leases)) == (0, 0)


def test_a_deadline_that_is_no_number_ends_at_once_and_holds_up_nobody() -> None:
    pages = book(2)
    leases = Leases(pages)
    leases.take(math.nan).add([0])
    leases.take(1.0).add([1])
    assert leases.expire(1.0) == 2
    assert pages.held == 0


def test_an_ended_lease_keeps_nothing_more() -> None:
    pages = book(2)
    leases = Leases(pages)
    lease = leases.take(1.0)
    hold = Counted()
    lease.holds.append(hold)
    leases.expire(1.0)
    lease.add([0])
    assert (pages.held, hold.drops) == (0, 1)


def test_released_leases_do_not_pile_up() -> None:
    leases = Leases(book(1))
    for _ in range(1000):
        leases.release(leases.take(1e9))
    assert len(leases._due) < 100
