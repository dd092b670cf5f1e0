"""What recent look-ups said: for how long it holds, and how much of it is kept."""

from cache.stores.presence import GONE_SECONDS, THERE_SECONDS, Hint, Presence
from cache.testing import BASE, SPACE, key

OTHER = BASE.namespace(lora="fingerprint")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_remembers_both_answers_for_their_time() -> None:
    clock = Clock()
    presence = Presence(clock=clock)
    presence.saw(SPACE, [key(0)], there=True)
    presence.saw(SPACE, [key(1)], there=False)
    assert presence.recall(SPACE, [key(0), key(1), key(2)]) == [Hint.THERE, Hint.GONE, Hint.UNKNOWN]
    assert presence.recall(OTHER, [key(0)]) == [Hint.UNKNOWN]
    clock.now = GONE_SECONDS + 0.1
    assert presence.recall(SPACE, [key(0), key(1)]) == [Hint.THERE, Hint.UNKNOWN]
    clock.now = THERE_SECONDS + 0.1
    assert presence.recall(SPACE, [key(0)]) == [Hint.UNKNOWN]


def test_the_last_answer_counts() -> None:
    presence = Presence()
    presence.saw(SPACE, [key(0)], there=False)
    presence.saw(SPACE, [key(0)], there=True)
    assert presence.recall(SPACE, [key(0)]) == [Hint.THERE]
    presence.saw(SPACE, [key(0)], there=False)
    assert presence.recall(SPACE, [key(0)]) == [Hint.GONE]
    presence.forget()
    assert presence.recall(SPACE, [key(0)]) == [Hint.UNKNOWN]


def test_is_bounded_and_keeps_the_newest() -> None:
    presence = Presence(capacity=100)
    for number in range(1000):
        presence.saw(SPACE, [key(number)], there=True)
    known = [hint is Hint.THERE for hint in presence.recall(SPACE, [key(n) for n in range(1000)])]
    assert 25 <= sum(known) <= 50
    assert known[-25:] == [True] * 25
