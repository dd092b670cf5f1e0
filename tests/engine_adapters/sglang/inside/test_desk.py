"""Orders between the agent's thread and the scheduler's."""

import select
from array import array
from collections.abc import Iterator

import pytest
import zmq

from cache.tickets import Phase, Progress
from engine_adapters.sglang.inside.desk import Desk, Drop, Fetch

TOKENS = array("q", range(64))


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.close()


def ready(desk: Desk) -> bool:
    return bool(select.select([desk.wake], [], [], 0)[0])


def test_orders_are_taken_once_and_wake_who_waits(desk: Desk) -> None:
    assert (desk.take(), ready(desk)) == ([], False)
    desk.fetch(TOKENS, "salt", 4)
    desk.fetch(TOKENS, None, 4)
    assert ready(desk)
    first, second = desk.take()
    assert isinstance(first, Fetch)
    assert isinstance(second, Fetch)
    assert (first.tokens, first.salt, second.salt) == (TOKENS, "salt", None)
    assert first.number != second.number
    assert (desk.take(), ready(desk)) == ([], False)


def test_what_is_told_shows_until_it_ends(desk: Desk) -> None:
    coming = desk.fetch(TOKENS, None, 4)
    (order,) = desk.take()
    assert (len(coming), coming.progress()) == (4, Progress(Phase.RUNNING, 0, settled=True))
    desk.tell(order.number, 2, Phase.RUNNING)
    assert coming.progress() == Progress(Phase.RUNNING, 2, settled=True)
    desk.tell(order.number, 3, Phase.DONE)
    desk.tell(order.number, 4, Phase.RUNNING)
    assert coming.progress() == Progress(Phase.DONE, 3, settled=True)


def test_letting_go_is_ordered_once(desk: Desk) -> None:
    coming = desk.fetch(TOKENS, None, 4)
    (order,) = desk.take()
    coming.cancel()
    coming.cancel()
    assert desk.take() == [Drop(order.number)]
    assert coming.progress().phase is Phase.CANCELLED
    desk.tell(order.number, 4, Phase.DONE)
    assert coming.progress().phase is Phase.CANCELLED


def test_what_was_there_and_is_lost_shows(desk: Desk) -> None:
    coming = desk.fetch(TOKENS, None, 4)
    (order,) = desk.take()
    desk.tell(order.number, 4, Phase.DONE)
    desk.tell(order.number, 0, Phase.CANCELLED)
    assert coming.progress() == Progress(Phase.CANCELLED, 0, settled=True)


def test_a_closed_one_leaves_the_sleeper_alone() -> None:
    desk, sleeper = Desk(), zmq.Poller()
    for _ in range(2):
        desk.rouse(sleeper)
    coming = desk.fetch(TOKENS, None, 4)
    assert sleeper.poll(0) == [(desk.wake, zmq.POLLIN)]
    desk.close()
    assert (sleeper.sockets, sleeper.poll(0)) == ([], [])
    coming.cancel()  # an agent that has hung, and now wakes
    desk.fetch(TOKENS, None, 4)
