"""Chats of many turns on one engine, and what they do to its memory."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tests.e2e.tiered import Tiered, prompt
from tests.e2e.tiered_sglang import TieredSglang

FIRST = 128
"""Tokens that a chat begins with."""
MORE = 96
ANSWER = 16
TURNS = 3
AT_ONCE = 4
SEEDS = 1 << 20
"""Where the seeds of its own chats begin, above those of the tests: pages that a chat has left in `host` are
not stored once more when a test asks for the same."""


class Load(NamedTuple):
    """What a load came to."""

    turns: int
    grown: int
    """Bytes that the engine's own memory has grown by, once it was warm."""


def many_turns(engine: Tiered | TieredSglang, seconds: float, alike: int) -> Load:
    """Chats of three turns, four at once; half of them begin in one of `alike` ways. Raises what one of them
    raised."""
    end, resident = time.monotonic() + seconds, list[int]()

    def chats(number: int) -> int:
        chance, turns = random.Random(number), 0
        while time.monotonic() < end:
            tokens = prompt(chance.randrange(alike) if turns % 2 else SEEDS * (number + 1) + turns, FIRST)
            for _ in range(TURNS):
                answer = engine.complete(tokens, most=ANSWER)
                tokens = [*tokens, *answer.tokens, *prompt(SEEDS + chance.randrange(1 << 30), MORE)]
                turns += 1
        return turns

    with ThreadPoolExecutor(AT_ONCE) as clients:
        under_way = [clients.submit(chats, number) for number in range(AT_ONCE)]
        while not all(one.done() for one in under_way):
            time.sleep(1)
            if time.monotonic() > end - seconds * 2 / 3:
                resident.append(engine.resident())
    return Load(sum(one.result() for one in under_way), _grown(resident))


def _grown(resident: list[int]) -> int:
    """From the first quarter's median to the last one's."""
    some = max(len(resident) // 4, 1)
    return sorted(resident[-some:])[some // 2] - sorted(resident[:some])[some // 2]
