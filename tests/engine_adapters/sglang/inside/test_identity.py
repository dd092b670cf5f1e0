"""What makes an engine's pages its own."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapters import weights
from engine_adapters.sglang.inside import identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"rope_theta": 10000, "dtype": "bfloat16"}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def named(folder: Path, **arguments: Any) -> str:
    plain = {
        "json_model_override_args": "{}",
        "kv_cache_dtype": "auto",
        "dtype": "auto",
        "quantization_param_path": None,
        "load_format": "auto",
    }
    told = SimpleNamespace(**{**plain, **arguments})
    return weights.named(folder, identity.architecture(folder, told), folder / "memory.json")


def test_arguments_that_change_the_model_change_the_namespace(folder: Path) -> None:
    names = [
        named(folder),
        named(folder, json_model_override_args='{"rope_theta": 500000}'),
        named(folder, kv_cache_dtype="fp8_e5m2"),
        named(folder, kv_cache_dtype="fp8_e5m2", dtype="float16"),
        named(folder, quantization_param_path="scales.json"),
        named(folder, load_format="dummy"),
    ]
    assert len(set(names)) == len(names)


def test_arguments_that_change_nothing_change_no_namespace(folder: Path) -> None:
    assert named(folder) == named(folder, json_model_override_args="") == named(folder, dtype="bfloat16")
    assert named(folder) == named(folder, load_format="safetensors")
    assert named(folder, json_model_override_args=' {"a": 1} ') == named(
        folder, json_model_override_args='{"a":1}'
    )
