"""Two vLLM replicas whose `gpu` is far too small, under chats: does the gateway know what is where?"""

import itertools
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.front import Front, Said, gateway
from tests.e2e.tiered import BLOCK, FLAGS, PAGE_BYTES, Tiered, crew_of, prompt
from tests.engines import Pool, ready

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

CHATS = 12
TURNS = 5
FIRST = 6 * BLOCK
MORE = 3 * BLOCK
ANSWER = 16
GPU_PAGES = 56
"""Two running chats, and not much more."""
CHATS_PAGES = 200
"""A host that holds a replica's chats. One minute has 120 requests: a load or two that find host leased, or
their pages gone since they were foretold, would be all that it tells of."""
FEW_PAGES = 60
"""Of three chats: the rest lies on the ssd."""


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, engine_pool: Pool) -> Iterator[tuple[Tiered, Tiered]]:
    flags = (*FLAGS[:-1], f"--num-gpu-blocks-override={GPU_PAGES}")
    with crew_of("agreement", engine_pool) as (crew, folder):
        tiers = {
            "host": request.param * (PAGE_BYTES + 4096),
            "ssd": {"path": str(folder / "ssd"), "cap": "2GiB", "free_floor": 0},
            "shared": {"url": str(folder / "shared"), "cap": "2GiB"},
        }
        cores = sorted(os.sched_getaffinity(0))
        a = Tiered("a", folder, crew, tiers, flags, bind=str(cores[-1]))
        b = Tiered("b", folder, crew, tiers, flags, bind=str(cores[0]))
        for one in (a, b):
            one.disturb(recompute_factor=1)
        with ready(a, b):
            yield a, b


@pytest.mark.parametrize(
    ("pair", "seconds"),
    [(CHATS_PAGES, 60.0), pytest.param(FEW_PAGES, 600.0, marks=pytest.mark.soak)],
    indirect=["pair"],
)
def test_predicted_and_reported_agree(pair: tuple[Tiered, Tiered], tmp_path: Path, seconds: float) -> None:
    """Chats take turns, four at a time; by tokens, so that an answer is what its next turn goes on from."""
    deadline = time.monotonic() + seconds
    asked = reported = wrong = 0
    mistakes: list[str] = []
    with gateway(pair, tmp_path) as front, ThreadPoolExecutor(4) as clients:
        for group in itertools.count():
            if time.monotonic() > deadline:
                break
            chats = [prompt(1000 * group + number, FIRST) for number in range(CHATS)]
            for turn in range(TURNS):
                answers = list(clients.map(lambda tokens: _say(front, tokens), chats))
                for number, (tokens, said) in enumerate(zip(chats, answers, strict=True)):
                    asked += len(tokens)
                    reported += said.cached
                    mistaken = abs(sum(said.predicted.values()) - said.cached)
                    wrong += mistaken
                    if mistaken:
                        mistakes.append(f"turn {turn}: {said.cached} of {len(tokens)}, not {said.predicted}")
                    more = random.Random(f"{group} {number} {turn}").choices(range(1000, 40000), k=MORE)
                    chats[number] = [*tokens, *said.tokens, *more]
    assert reported >= asked / 2, f"{reported} of {asked} tokens were cached: too few to say anything"
    told = f"{wrong} tokens were mistaken, of {reported} that were cached: {mistakes}"
    print(told)
    assert wrong <= 0.01 * reported, told


def _say(front: Front, tokens: list[int]) -> Said:
    return front.complete(tokens, max_tokens=ANSWER)
