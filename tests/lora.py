"""A LoRA adapter of random weights, small enough to make for a test."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4


def make_adapter(model: Path, folder: Path, seed: int = 0) -> None:
    """Write one for the Llama-like model in `model`, in PEFT's format: queries and values of all layers."""
    config = json.loads((model / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    outs = {"q_proj": hidden, "v_proj": hidden // heads * config["num_key_value_heads"]}
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in outs.items():
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (RANK, hidden)), ("B", (out, RANK))):
                weights = random.normal(0, 0.05, shape).astype(np.float32)
                tensors[f"{module}.lora_{part}.weight"] = weights
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": sorted(outs),
        "bias": "none",
        "base_model_name_or_path": str(model),
    }
    (folder / "adapter_config.json").write_text(json.dumps(told))
