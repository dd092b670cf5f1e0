import os
import signal

import pytest

from engine_adapters.up.interrupts import ENDING, Interrupts


@pytest.mark.parametrize("number", ENDING)
def test_each_ending_signal_is_a_keyboard_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_what_is_held_ends_first() -> None:
    steps = []

    def signalled() -> None:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("held")
        steps.append("after")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        signalled()
    assert steps == ["held"]
