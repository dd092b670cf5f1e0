"""Calls that wait, some at once."""

import threading
import time

from cache.stores.parallel import Hands, in_order


def test_in_order_keeps_order_and_overlaps() -> None:
    together = threading.Barrier(4)

    def call(item: int) -> int:
        together.wait(30)
        return item * 2

    assert list(in_order(call, range(16), 4)) == [2 * n for n in range(16)]


def test_hands_stop_waiting_at_the_deadline_and_drop_what_has_not_begun() -> None:
    hands, leave, late = Hands("test", 1), threading.Event(), threading.Event()
    begin = time.monotonic()
    hands.run([lambda: leave.wait(30) and None, late.set], begin + 0.05)
    assert 0.05 <= time.monotonic() - begin < 10
    leave.set()
    done = threading.Event()
    hands.run([done.set], time.monotonic() + 30)
    assert done.is_set()
    assert not late.is_set()
    hands.run([], time.monotonic() + 30)
    hands.close()
