"""vLLM with our tiers in it: text stays right, the plan decides, faults are survived. SmolLM2 on CPU."""

import contextlib
import errno
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import httpx2
import pytest

from tests.e2e.tiered import BLOCK, PAGE_BYTES, THRESHOLD, Answer, Tiered, changed_rows, crew_of, flip, prompt
from tests.engines import MODEL, Pool, ready
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LOAD_SECONDS = 10.0
PROMPTS = [prompt(100 + number, 8 * BLOCK + number) for number in range(20)]


@pytest.fixture(scope="module")
def engine(engine_pool: Pool) -> Iterator[Tiered]:
    with crew_of("tiers", engine_pool) as (crew, folder):
        tiers = {"host": "512MiB", "ssd": {"path": str(folder / "ssd"), "cap": "1GiB", "free_floor": 0}}
        environment = {"HPKV_CACHE__LOAD_S": str(LOAD_SECONDS)}
        started = Tiered("tiers", folder, crew, tiers, environment=environment)
        with ready(started):
            yield started


@pytest.fixture(scope="module")
def cold(engine: Tiered) -> list[Answer]:
    """What the engine says to all prompts, computing each."""
    answers = [engine.complete(tokens) for tokens in PROMPTS]
    assert not any(answer.cached for answer in answers)
    engine.settled()
    return answers


def check(answers: list[Answer], cold: list[Answer]) -> None:
    """All say the same as cold, from 8 pages that were cached."""
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in cold]
    assert [answer.text for answer in answers] == [answer.text for answer in cold]
    assert {answer.cached for answer in answers} == {8 * BLOCK}


def test_text_after_a_hit_in_host(engine: Tiered, cold: list[Answer]) -> None:
    engine.forget()
    before = engine.metrics()
    check([engine.complete(tokens) for tokens in PROMPTS], cold)
    after = engine.metrics()
    assert after.loaded()[0] - before.loaded()[0] == 20 * 8 * BLOCK
    assert after.loaded()[1:] == before.loaded()[1:]


def test_text_after_a_hit_in_ssd(engine: Tiered, cold: list[Answer]) -> None:
    engine.forget(host=True)
    before = engine.metrics()
    check([engine.complete(tokens) for tokens in PROMPTS], cold)
    assert engine.metrics().loaded()[1] - before.loaded()[1] == 20 * 8 * BLOCK


def test_text_after_a_hit_in_gpu_host_and_ssd(engine: Tiered, cold: list[Answer]) -> None:
    answers = []
    for tokens in PROMPTS:
        engine.forget(host=True)
        engine.complete(tokens[: 5 * BLOCK + 1], most=1)
        engine.forget()
        engine.complete(tokens[: 3 * BLOCK + 1], most=1)
        at_first = engine.metrics()
        answers.append(engine.complete(tokens))
        host, ssd = engine.metrics().loaded()[:2]
        assert (host - at_first.loaded()[0], ssd - at_first.loaded()[1]) == (2 * BLOCK, 3 * BLOCK)
    check(answers, cold)


def test_text_after_a_restart(engine: Tiered, cold: list[Answer]) -> None:
    engine.restart()
    check([engine.complete(tokens) for tokens in PROMPTS], cold)
    assert engine.metrics().loaded() == (0, 20 * 8 * BLOCK, 0)


def test_the_threshold_decides(engine: Tiered) -> None:
    for number, pages, cached in ((300, THRESHOLD // BLOCK - 1, 0), (301, THRESHOLD // BLOCK, THRESHOLD)):
        tokens = prompt(number, pages * BLOCK + 1)
        first = engine.complete(tokens)
        engine.settled()
        engine.forget()
        refused = engine.metrics().get("hpkv_refused_tokens", reason="threshold")
        again = engine.complete(tokens)
        assert (again.cached, again.tokens) == (cached, first.tokens)
        now = engine.metrics().get("hpkv_refused_tokens", reason="threshold")
        assert now - refused == pages * BLOCK - cached


def test_a_slow_page_does_not_cut_off_fast_ones_behind_it(engine: Tiered) -> None:
    tokens = prompt(310, 8 * BLOCK + 1)
    first = engine.complete(tokens)
    engine.settled()
    engine.forget()
    before = engine.metrics().loaded()
    again = engine.complete(tokens, kv_transfer_params={"hpkv_test_forget": 4})
    after = engine.metrics().loaded()
    assert (again.cached, again.tokens) == (8 * BLOCK, first.tokens)
    assert (after[0] - before[0], after[1] - before[1]) == (7 * BLOCK, BLOCK)


def test_a_tier_slower_than_recomputing_is_left_out_until_it_recovers(engine: Tiered) -> None:
    tokens = prompt(320, THRESHOLD + 1)
    first = engine.complete(tokens)
    engine.settled()
    engine.disturb(read_seconds=2.5, recompute_factor=1)
    refused_before = engine.metrics().get("hpkv_refused_tokens", reason="cost")

    def again() -> int:
        engine.forget(host=True)
        answer = engine.complete(tokens)
        assert answer.tokens == first.tokens
        return answer.cached

    def refused() -> bool:
        """By its cost: a read that was late would be computed, too."""
        cached = again()
        now = engine.metrics().get("hpkv_refused_tokens", reason="cost")
        return cached == 0 and now >= refused_before + THRESHOLD

    until(refused, 120)
    engine.disturb(recompute_factor=1)
    until(lambda: again() == THRESHOLD, 120)
    engine.disturb()


def test_an_unreadable_a_full_and_a_hanging_ssd(engine: Tiered) -> None:
    reads, writes, hangs = (prompt(330 + number, 8 * BLOCK + 1) for number in range(3))
    first = engine.complete(reads), engine.complete(hangs)
    engine.settled()
    engine.forget(host=True)
    failed = engine.metrics().get("hpkv_failed_pages", tier="ssd")
    engine.disturb(read_errno=errno.EIO)
    again = engine.complete(reads)
    assert (again.tokens, again.cached) == (first[0].tokens, 0)
    assert engine.metrics().get("hpkv_failed_pages", tier="ssd") > failed

    engine.disturb(write_errno=errno.ENOSPC)
    dropped = engine.metrics().get("hpkv_dropped_pages", tier="ssd")
    first_written = engine.complete(writes)
    until(lambda: engine.metrics().get("hpkv_dropped_pages", tier="ssd") >= dropped + 8)
    engine.forget()
    assert engine.complete(writes) == first_written._replace(cached=8 * BLOCK), "host has it"

    engine.forget(host=True)
    engine.disturb(read_seconds=-1, write_seconds=-1)
    begun = time.monotonic()
    again = engine.complete(hangs)
    assert again.tokens == first[1].tokens
    assert time.monotonic() - begun < 3 * LOAD_SECONDS + 20, "the deadline, and time to recompute"
    assert engine.metrics().get("hpkv_expired_pages", tier="ssd") > 0
    engine.disturb()
    until(lambda: engine.metrics().held == (0, 0, 0))

    def recovered() -> bool:
        engine.forget(host=True)
        return engine.complete(hangs).cached == 8 * BLOCK

    until(recovered)  # a probe finds that the disk answers again


def test_a_flipped_bit(engine: Tiered) -> None:
    table = engine.ssd / "00/table"
    before = table.read_bytes()
    tokens = prompt(340, 8 * BLOCK + 1)
    first = engine.complete(tokens)
    engine.settled()
    flip(engine.ssd / "00/pages", changed_rows(before, table.read_bytes())[4], PAGE_BYTES)
    engine.forget(host=True)
    damaged = engine.metrics().get("hpkv_damaged_pages", tier="ssd")
    again = engine.complete(tokens)
    assert again.tokens == first.tokens
    assert again.cached < 8 * BLOCK
    assert engine.metrics().get("hpkv_damaged_pages", tier="ssd") == damaged + 1


def test_requests_aborted_at_random_moments_give_everything_back(engine: Tiered, cold: list[Answer]) -> None:
    moments = random.Random(5)

    def ask(number: int) -> None:
        tokens = prompt(2000 + number, 5 * BLOCK) if number % 4 == 0 else PROMPTS[number % len(PROMPTS)]
        with contextlib.suppress(httpx2.TimeoutException):
            engine.client.post(
                "/v1/completions",
                json={"model": MODEL, "prompt": tokens, "max_tokens": 20, "temperature": 0},
                timeout=moments.uniform(0.001, 0.6),
            )

    with ThreadPoolExecutor(8) as clients:
        for number, _ in enumerate(clients.map(ask, range(200))):
            if number % 25 == 0:
                engine.reset(host=True)
    until(lambda: engine.metrics().held == (0, 0, 0), 120)
    assert engine.metrics().get("hpkv_errors") == 0
    engine.forget()  # of a prompt in it all but a page or two, less than the threshold would be left
    check([engine.complete(tokens) for tokens in PROMPTS[:3]], cold[:3])


def test_running_requests_survive_a_reset(engine: Tiered) -> None:
    """vLLM preempts them between two steps, and in the next they find their pages in `host`."""
    tokens = prompt(450, 6 * BLOCK + 1)
    first = engine.complete(tokens, most=40)
    engine.settled()
    resets = 0
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(engine.complete, tokens, 40)
        while not asked.done():
            time.sleep(0.1)
            answer = engine.client.post("/reset_prefix_cache", params={"reset_running_requests": "true"})
            resets += answer.status_code == 200  # refused while a copy is under way
        assert asked.result().tokens == first.tokens
    assert resets
    until(lambda: engine.metrics().held == (0, 0, 0))


def test_killed_while_storing(engine: Tiered) -> None:
    prompts = [prompt(500 + number, 8 * BLOCK + 1) for number in range(6)]
    engine.disturb(write_seconds=0.5)
    stored = engine.metrics().get("hpkv_stored_tokens", tier="ssd")

    def ask(tokens: list[int]) -> None:
        with contextlib.suppress(httpx2.HTTPError):
            engine.client.post("/v1/completions", json={"model": MODEL, "prompt": tokens, "max_tokens": 1})

    with ThreadPoolExecutor(len(prompts)) as clients:
        asking = [clients.submit(ask, tokens) for tokens in prompts]
        until(lambda: engine.metrics().get("hpkv_stored_tokens", tier="ssd") > stored + 16 * BLOCK)
        engine.kill()
        wait(asking)
    engine.disturb()
    engine.start()
    engine.wait_ready()
    fresh = [engine.complete(tokens, cache_salt=f"fresh {n}") for n, tokens in enumerate(prompts)]
    again = [engine.complete(tokens) for tokens in prompts]
    assert [answer.tokens for answer in again] == [answer.tokens for answer in fresh]
    assert any(answer.cached for answer in again), "pages were found after the kill"
    metrics = engine.metrics()
    assert metrics.get("hpkv_damaged_pages") == 0, "no partial page was visible"
    assert metrics.loaded()[1] == sum(answer.cached for answer in again)
