"""Two tensor-parallel ranks that share a host tier, pages of two blocks, write-back. A small Llama on CPU."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.e2e.tiered import BLOCK, FLAGS, Tiered, crew_of, prompt
from tests.engines import HOME, MODEL, Pool, ready
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

PAGE = 2 * BLOCK
PROMPTS = [prompt(900 + number, 4 * PAGE + 1 + number) for number in range(6)]
SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


@pytest.fixture(scope="module")
def engine(engine_pool: Pool) -> Iterator[Tiered]:
    with crew_of("ranks", engine_pool) as (crew, folder):
        started = Tiered(
            "ranks",
            folder,
            crew,
            {"host": "64MiB", "ssd": {"path": str(folder / "ssd"), "cap": "256MiB", "free_floor": 0}},
            flags=(*FLAGS, "--tensor-parallel-size=2", "--shutdown-timeout=30"),
            model=divisible_model(folder / "model"),
            environment={"HPKV_CACHE__WRITE": "back"},
            bind="0|1",
            page_tokens=PAGE,
        )
        with ready(started):
            yield started


def test_text_after_hits_in_host_and_after_an_orderly_end_in_ssd(engine: Tiered) -> None:
    cold = [engine.complete(tokens) for tokens in PROMPTS]
    assert len({tuple(answer.tokens) for answer in cold}) == len(PROMPTS), "they depend on their prompts"
    assert not any(answer.cached for answer in cold)
    hit = [answer._replace(cached=4 * PAGE) for answer in cold]

    engine.forget()
    assert [engine.complete(tokens) for tokens in PROMPTS] == hit
    metrics = engine.settled()
    assert metrics.loaded() == (6 * 4 * PAGE, 0, 0)
    assert metrics.get("hpkv_stored_tokens", tier="ssd") == 0, "write-back waits"

    engine.signal(signal.SIGTERM)
    until(lambda: not engine.running)
    engine.restart()
    assert [engine.complete(tokens) for tokens in PROMPTS] == hit
    assert engine.metrics().loaded() == (0, 6 * 4 * PAGE, 0)


def test_a_page_that_the_engine_has_in_part_is_loaded_whole(engine: Tiered) -> None:
    tokens = prompt(950, 4 * PAGE + 1)
    cold = engine.complete(tokens)
    engine.settled()
    engine.forget()
    engine.complete(tokens[: 3 * BLOCK + 1], most=1)
    before = engine.metrics().loaded()
    assert engine.complete(tokens) == cold._replace(cached=4 * PAGE)
    assert engine.metrics().loaded()[0] - before[0] == 3 * PAGE


def divisible_model(folder: Path) -> Path:
    """A model with heads for two ranks (SmolLM2 has nine), and SmolLM2's tokenizer."""
    source = HOME / "models" / MODEL
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text()) | SHAPE | {"dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    chance = np.random.default_rng(0)
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden)}
    norms = ["model.norm"]
    for layer in range(config["num_hidden_layers"]):
        place = f"model.layers.{layer}"
        shapes |= {f"{place}.{name}": shape for name, shape in matrices.items()}
        norms += [f"{place}.input_layernorm", f"{place}.post_attention_layernorm"]
    tensors = {f"{name}.weight": chance.normal(0, 0.2, shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": np.ones(hidden) for name in norms}
    save_file({name: one.astype(np.float32) for name, one in tensors.items()}, folder / "model.safetensors")
    return folder
