"""Replicas that share storage share pages only if their pages mean the same. SmolLM2 on CPU."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from engine_adapters.up.crew import Crew
from tests.e2e.tiered import BLOCK, FLAGS, Answer, Tiered, crew_of, prompt
from tests.engines import HOME, MODEL, Pool, ready
from tests.lora import make_adapter
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PROMPTS = [prompt(700 + number, 6 * BLOCK + 1 + number) for number in range(20)]
SALTED = prompt(750, 6 * BLOCK + 1)
LORAS = ("pirate", "poet")


class Place(NamedTuple):
    crew: Crew
    folder: Path
    cold: list[Answer]
    """What a replica said to the prompts that it left on the shared store."""
    salted: Answer

    def replica(self, name: str, **how: object) -> Tiered:
        """Another one on the same store, with an ssd of its own."""
        tiers = {
            "host": "512MiB",
            "ssd": {"path": str(self.folder / f"{name}.ssd"), "cap": "1GiB", "free_floor": 0},
            "shared": {"url": str(self.folder / "shared")},
        }
        return Tiered(name, self.folder, self.crew, tiers, **how)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(engine_pool: Pool) -> Iterator[Place]:
    with crew_of("namespaces", engine_pool) as (crew, folder):
        first = Place(crew, folder, [], None).replica("first")  # type: ignore[arg-type]
        first.wait_ready()
        cold = [first.complete(tokens) for tokens in PROMPTS]
        salted = first.complete(SALTED, cache_salt="tenant a")
        until(lambda: first.metrics().get("hpkv_stored_tokens", tier="shared") >= 21 * 6 * BLOCK, 120)
        first.end()
        yield Place(crew, folder, cold, salted)


@pytest.fixture(scope="class")
def second(place: Place) -> Iterator[Tiered]:
    """It serves LoRAs beside the model, which changes nothing for the model."""
    modules = []
    for seed, name in enumerate(LORAS):
        make_adapter(HOME / "models" / MODEL, place.folder / name, seed)
        modules.append(f"{name}={place.folder / name}")
    flags = (*FLAGS, "--enable-lora", "--max-lora-rank=8", "--lora-modules", *modules)
    replica = place.replica("second", flags=flags)
    with ready(replica):
        yield replica


class TestAnEqualReplica:
    def test_it_reads_them(self, place: Place, second: Tiered) -> None:
        answers = [second.complete(tokens) for tokens in PROMPTS]
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in place.cold]
        assert {answer.cached for answer in answers} == {6 * BLOCK}
        assert second.metrics().loaded() == (0, 0, 20 * 6 * BLOCK)

    def test_salts_stay_apart(self, place: Place, second: Tiered) -> None:
        assert second.complete(SALTED).cached == 0
        assert second.complete(SALTED, cache_salt="tenant b").cached == 0
        again = second.complete(SALTED, cache_salt="tenant a")
        assert (again.tokens, again.cached) == (place.salted.tokens, 6 * BLOCK)

    def test_loras_read_nothing_of_each_other(self, second: Tiered) -> None:
        tokens = PROMPTS[0]
        for name in LORAS:
            second.complete(prompt(760, BLOCK), model=name)  # by now its weights are being read
        first = [second.complete(tokens, model=name) for name in LORAS]
        assert [answer.cached for answer in first] == [0, 0]
        second.settled()
        second.forget(host=True)
        again = [second.complete(tokens, model=name) for name in LORAS]
        assert [answer.tokens for answer in again] == [answer.tokens for answer in first]
        assert [answer.cached for answer in again] == [6 * BLOCK] * 2


def test_another_dtype_reads_nothing(place: Place) -> None:
    assert cached_on(place, "bfloat", flags=("--dtype=bfloat16", *FLAGS[1:])) == [0] * 3


def test_other_weights_read_nothing(place: Place) -> None:
    assert cached_on(place, "weights", model=other_weights(place.folder)) == [0] * 3


def cached_on(place: Place, name: str, **how: object) -> list[int]:
    replica = place.replica(name, **how)
    with ready(replica):
        first = [replica.complete(tokens) for tokens in PROMPTS[:3]]
        replica.settled()
        replica.forget(host=True)
        again = [replica.complete(tokens) for tokens in PROMPTS[:3]]
        assert [answer.cached for answer in again] == [6 * BLOCK] * 3, "it reads its own"
        return [answer.cached for answer in first]


def other_weights(folder: Path) -> Path:
    """The same model with one weight changed by a hair."""
    changed = folder / "model"
    shutil.copytree(HOME / "models" / MODEL, changed)
    (weights,) = changed.glob("*.safetensors")
    raw = bytearray(weights.read_bytes())
    raw[-2] ^= 1
    weights.write_bytes(raw)
    return changed
