"""A gateway before a real vLLM with tiers: what it foretells of each, and what it knows after restarts."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.front import Said, gateway
from tests.e2e.tiered import BLOCK, PAGE_BYTES, Tiered, crew_of, prompt
from tests.engines import Pool, ready
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

HOST_PAGES = 96


@pytest.fixture(scope="module")
def engine(engine_pool: Pool) -> Iterator[Tiered]:
    with crew_of("foretold", engine_pool) as (crew, folder):
        tiers = {
            "host": HOST_PAGES * (PAGE_BYTES + 4096),
            "ssd": {"path": str(folder / "ssd"), "cap": "1GiB", "free_floor": 0},
            "shared": {"url": str(folder / "shared")},
        }
        started = Tiered("foretold", folder, crew, tiers)
        with ready(started):
            yield started


def test_predicted_and_reported_agree(engine: Tiered, tmp_path: Path) -> None:
    """Chats of five turns, more than `gpu` holds and more than `host` does, in any order; two at once."""

    def chats(numbers: range) -> list[tuple[int, Said]]:
        """Each prompt's tokens, and what was said."""
        chance = random.Random(numbers.start)
        turns = {number: prompt(1000 + number, 8 * BLOCK) for number in numbers}
        told = []
        for number in chance.sample(numbers, k=5 * len(numbers), counts=[5] * len(numbers)):
            said = front.complete(turns[number])
            told.append((len(turns[number]), said))
            more = prompt(chance.randrange(1 << 30), 2 * BLOCK)
            turns[number] = [*turns[number], *said.tokens, *more]
        return told

    with gateway([engine], tmp_path) as front, ThreadPoolExecutor(2) as clients:
        told = [one for some in clients.map(chats, (range(6), range(6, 12))) for one in some]
    asked = sum(tokens for tokens, _ in told)
    reported = sum(said.cached for _, said in told)
    errors = sum(abs(sum(said.predicted.values()) - said.cached) for _, said in told)
    print(f"{errors} of {reported} tokens, of {asked}")
    assert errors <= 0.01 * reported
    assert reported >= asked / 2
    tiers = {tier for _, said in told for tier in said.predicted}
    assert {"host", "ssd"} <= tiers, "what was reported came from below, too"


def test_a_new_gateway_knows_all_tiers(engine: Tiered, tmp_path: Path) -> None:
    with gateway([engine], tmp_path) as front:
        tokens = prompt(1, 12 * BLOCK + 1)
        front.complete(tokens)
        engine.settled()
        engine.forget(host=True)
        front.complete(tokens[: 6 * BLOCK + 1])  # from ssd, which leaves it in gpu and host
        engine.settled()
        engine.forget()
        front.complete(prompt(2, BLOCK))  # with it, vLLM says that it forgot
        expected = {"host": 6 * BLOCK, "ssd": 6 * BLOCK}
        until(lambda: front.matches(tokens) == {engine.name: expected})
    with gateway([engine], tmp_path) as front:
        until(lambda: front.matches(tokens) == {engine.name: expected})
        said = front.complete(tokens)
        assert said.predicted == expected
        assert said.cached == 12 * BLOCK


def test_salts_keep_tenants_apart(engine: Tiered, tmp_path: Path) -> None:
    tokens = prompt(3, 8 * BLOCK + 1)
    with gateway([engine], tmp_path) as front:
        front.complete(tokens, cache_salt="mine")
        until(lambda: front.matches(tokens, cache_salt="mine") == {engine.name: {"gpu": 8 * BLOCK}})
        assert front.matches(tokens) == front.matches(tokens, cache_salt="yours") == {engine.name: {}}


def test_a_restarted_engine_keeps_what_lies_on_disk(engine: Tiered, tmp_path: Path) -> None:
    tokens = prompt(4, 12 * BLOCK + 1)
    with gateway([engine], tmp_path) as front:
        front.complete(tokens)
        engine.settled()
        engine.restart()
        until(lambda: front.matches(tokens) == {engine.name: {"ssd": 12 * BLOCK}}, 120)
        said = front.complete(tokens)
        assert said.predicted == {"ssd": 12 * BLOCK}
        assert said.cached == 12 * BLOCK
