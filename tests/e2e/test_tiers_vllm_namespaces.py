"""Replicas that share storage share pages only if their pages mean the same. SmolLM2 on CPU."""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from engine_adapters.up.crew import Crew
from tests.e2e.tiered import BLOCK, FLAGS, Answer, Tiered, crew_of, prompt, until
from tests.engines import HOME, MODEL, Pool

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PROMPTS = [prompt(700 + number, 6 * BLOCK + 1 + number) for number in range(20)]
SALTED = prompt(750, 6 * BLOCK + 1)
HIDDEN, LAYERS, RANK = 576, 30, 8


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
        patient = {"HPKV_CACHE__LOOK_S": "5", "HPKV_CACHE__LOAD_S": "20"}
        return Tiered(name, self.folder, self.crew, tiers, environment=patient, **how)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def place(engine_pool: Pool) -> Iterator[Place]:
    with crew_of("namespaces", engine_pool) as (crew, folder):
        first = Place(crew, folder, [], None).replica("first")  # type: ignore[arg-type]
        first.wait_ready()
        cold = [first.complete(tokens) for tokens in PROMPTS]
        salted = first.complete(SALTED, cache_salt="tenant a")
        until(lambda: first.metrics().get("hpkv_stored_tokens", tier="shared") >= 21 * 6 * BLOCK)
        first.end()
        yield Place(crew, folder, cold, salted)


def test_an_equal_replica_reads_them(place: Place) -> None:
    second = place.replica("second")
    try:
        second.wait_ready()
        second.learn()
        answers = [second.complete(tokens) for tokens in PROMPTS]
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in place.cold]
        assert {answer.cached for answer in answers} == {6 * BLOCK}
        assert second.metrics().loaded() == (0, 0, 20 * 6 * BLOCK)

        assert second.complete(SALTED).cached == 0
        assert second.complete(SALTED, cache_salt="tenant b").cached == 0
        again = second.complete(SALTED, cache_salt="tenant a")
        assert (again.tokens, again.cached) == (place.salted.tokens, 6 * BLOCK)
    finally:
        second.end()


def test_another_dtype_reads_nothing(place: Place) -> None:
    assert cached_on(place, "bfloat", flags=("--dtype=bfloat16", *FLAGS[1:])) == [0] * 3


def test_other_weights_read_nothing(place: Place) -> None:
    assert cached_on(place, "weights", model=other_weights(place.folder)) == [0] * 3


def cached_on(place: Place, name: str, **how: object) -> list[int]:
    replica = place.replica(name, **how)
    try:
        replica.wait_ready()
        replica.learn()
        first = [replica.complete(tokens) for tokens in PROMPTS[:3]]
        replica.settled()
        replica.forget(host=True)
        again = [replica.complete(tokens) for tokens in PROMPTS[:3]]
        assert [answer.cached for answer in again] == [6 * BLOCK] * 3, "it reads its own"
        return [answer.cached for answer in first]
    finally:
        replica.end()


def test_loras_read_nothing_of_each_other(place: Place) -> None:
    loras = [adapter(place.folder / name, seed) for seed, name in enumerate(("pirate", "poet"))]
    modules = [f"{path.name}={path}" for path in loras]
    flags = (*FLAGS, "--enable-lora", f"--max-lora-rank={RANK}", "--lora-modules", *modules)
    replica = place.replica("loras", flags=flags)
    try:
        replica.wait_ready()
        replica.learn()
        tokens = PROMPTS[0]
        assert replica.complete(tokens).cached == 6 * BLOCK, "without a LoRA it is an equal replica"
        for lora in loras:
            replica.complete(prompt(760, BLOCK), model=lora.name)  # by now its weights are being read
        first = [replica.complete(tokens, model=lora.name) for lora in loras]
        assert [answer.cached for answer in first] == [0, 0]
        replica.settled()
        replica.forget(host=True)
        again = [replica.complete(tokens, model=lora.name) for lora in loras]
        assert [answer.tokens for answer in again] == [answer.tokens for answer in first]
        assert [answer.cached for answer in again] == [6 * BLOCK] * 2
    finally:
        replica.end()


def other_weights(folder: Path) -> Path:
    """The same model with one weight changed by a hair."""
    changed = folder / "model"
    shutil.copytree(HOME / "models" / MODEL, changed)
    (weights,) = changed.glob("*.safetensors")
    raw = bytearray(weights.read_bytes())
    raw[-2] ^= 1
    weights.write_bytes(raw)
    return changed


def adapter(folder: Path, seed: int) -> Path:
    """A small random LoRA."""
    folder.mkdir()
    chance = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for part, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (HIDDEN, RANK))):
            tensors[f"{name}.{part}.weight"] = chance.normal(0, 0.05, shape).astype(np.float32)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj"],
        "bias": "none",
        "base_model_name_or_path": MODEL,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    head, at = {}, 0
    for name, tensor in tensors.items():
        head[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (at, at + tensor.nbytes)}
        at += tensor.nbytes
    raw = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(t.tobytes() for t in tensors.values()))
