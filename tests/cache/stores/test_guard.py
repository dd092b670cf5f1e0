"""Who is let into a store that hangs or fails."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from cache.stores.guard import FAULTS, LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, Call, Guard, Unavailable


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_overdue_call_closes_it_until_it_returns(clock: Clock) -> None:
    guard = Guard("here", 5.0, 2, clock)
    with guard.call(Call.READ):
        clock.now = 4.9
        with guard.call(Call.READ):
            pass
        clock.now = 5.1
        assert not guard.available
        with pytest.raises(Unavailable), guard.call(Call.LOOK):
            pass
        with guard.call(Call.TEND):  # somebody must find out
            pass
    assert guard.available
    with guard.call(Call.READ):
        pass


def test_only_so_many_are_in_at_once() -> None:
    guard, leave, entered = Guard("here", 0.05, 2), Event(), [Event(), Event()]

    def stay(number: int) -> None:
        with guard.call(Call.READ):
            entered[number].set()
            leave.wait(30)

    with ThreadPoolExecutor(2) as pool:
        inside = [pool.submit(stay, number) for number in range(2)]
        assert all(event.wait(30) for event in entered)
        with pytest.raises(Unavailable), guard.call(Call.READ):
            pass
        leave.set()
        for call in inside:
            call.result()
    with guard.call(Call.READ):
        pass


def test_faults_in_a_row_close_it_for_longer_and_longer(clock: Clock) -> None:
    guard = Guard("here", 5.0, 2, clock)
    for _ in range(FAULTS - 1):
        guard.fault()
    assert guard.available
    guard.fault()
    assert not guard.available
    clock.now += PAUSE_SECONDS
    assert guard.available
    for _ in range(20):
        guard.fault()
    clock.now += LONGEST_PAUSE_SECONDS - 0.1
    assert not guard.available
    clock.now += 0.1
    assert guard.available


def test_an_answer_ends_the_row(clock: Clock) -> None:
    guard = Guard("here", 5.0, 2, clock)
    for _ in range(10):
        guard.fault()
        guard.fault()
        guard.fine()
    assert guard.available


def test_says_once_that_it_is_gone_and_once_that_it_is_back(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard("/mnt/kv", 5.0, 2, clock)
    guard.fault(FAULTS)
    assert not any([guard.available, guard.available])
    guard.fine()
    guard.fine()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "/mnt/kv is out of reach: all is a miss until it answers again",
        "/mnt/kv answers again",
    ]


def test_it_has_not_answered_while_a_call_hangs(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("here", 5.0, 2, clock)
    with guard.call(Call.READ):
        clock.now = 6.0
        for _ in range(3):
            guard.fine()
            assert not guard.available
    guard.fine()
    assert guard.available
    said = [record.getMessage() for record in caplog.records]
    assert said == ["here is out of reach: all is a miss until it answers again", "here answers again"]


def test_who_closes_it_waits_for_those_inside_and_lets_nobody_in() -> None:
    guard, inside, go = Guard("here", 5.0, 2), Event(), Event()

    def stay() -> None:
        with guard.call(Call.READ):
            inside.set()
            go.wait(30)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stay)
        assert inside.wait(30)
        assert not guard.close(0.01)
        for kind in Call:
            with pytest.raises(Unavailable), guard.call(kind):
                pass
        go.set()
        assert guard.close(30)
