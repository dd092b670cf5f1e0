"""Names of pages against vLLM's own requests, in vLLM's environment."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.engines import HOME

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[4]
COMPARE = """
import random
import numpy as np
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request
from engine_adapters.vllm.inside.namespaces import Lora
from engine_adapters.vllm.inside.prompts import Hasher

tokens = random.Random(1).choices(range(49152), k=4003)
adapters = (None, Lora("a", "/adapters/a", 1), Lora("salt", "/adapters/b", 2))
for algorithm in ("sha256", "sha256_cbor"):
    for hash_tokens, page_tokens in ((16, 16), (16, 64), (32, 32)):
        hasher = Hasher(algorithm, hash_tokens, page_tokens)
        theirs = get_request_block_hasher(hash_tokens, get_hash_fn_by_name(algorithm))
        for salt in (None, "a", "salt"):
            for lora in adapters:
                request = Request(
                    "request", list(tokens), SamplingParams(max_tokens=1), None, cache_salt=salt,
                    lora_request=LoRARequest(lora.name, 7, lora.path) if lora else None, block_hasher=theirs,
                )
                every = page_tokens // hash_tokens
                keys = hasher.keys(np.array(tokens, np.uint32), salt, lora)
                assert keys == request.block_hashes[every - 1 :: every][: len(keys)]
                assert len(keys) == 4003 // page_tokens
        assert hasher.keys(np.array(tokens[: page_tokens - 1], np.uint32), None, None) == []
print("alike")
"""


def test_pages_are_called_as_vllm_calls_them(small_model_folder: Path) -> None:
    """With each algorithm, page size, salt and LoRA, one of which has a salt's name."""
    python = HOME / "envs/vllm/bin/python"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([python, "-c", COMPARE], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["alike"], done.stderr
