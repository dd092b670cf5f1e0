from engine_adapters.prefills import LEAST_TOKENS, Prefill, Prefills


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_step_takes_from_its_scheduling_to_its_output() -> None:
    clock = Clock()
    prefills = Prefills(clock)
    prefills.begin(1000)
    clock.now += 2.0
    assert prefills.end() == Prefill(1000, 2.0)


def test_steps_scheduled_ahead_ran_one_after_the_other() -> None:
    clock = Clock()
    prefills = Prefills(clock)
    prefills.begin(1000)
    clock.now += 0.5
    prefills.begin(500)
    clock.now += 1.5
    assert prefills.end() == Prefill(1000, 2.0)
    clock.now += 1.0
    assert prefills.end() == Prefill(500, 1.0)


def test_decoding_says_nothing() -> None:
    prefills = Prefills()
    prefills.begin(LEAST_TOKENS - 1)
    assert prefills.end() is None
    assert prefills.end() is None
