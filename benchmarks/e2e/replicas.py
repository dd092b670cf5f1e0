"""Replicas on one machine: how large their own caches are, and which tiers they have."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.engines import running_replicas
from engine_adapters.replica import LocalReplica
from engine_adapters.settings import Tiers

BLOCK = 64
KV_BYTES = 23_040
"""Of a token of SmolLM2 in bfloat16."""
SSD_BYTES = 8 << 30
LEAST_HOST = {"vllm": 0, "sglang": 10**9}
"""Bytes of host memory that an engine can't have less than."""


@contextmanager
def running(
    engine: str,
    folder: Path,
    gpu_tokens: int,
    host_tokens: int,
    *,
    count: int = 2,
    shares: int | None = None,
    shared: Path | None = None,
) -> Iterator[list[LocalReplica]]:
    """Two replicas, or `count`, ready, each on one of `shares` of the cores. Without `host_tokens` they have
    no tiers.

    Below `host` lies an ssd in `folder`, or else what is given as `shared`.
    """
    tiers: dict[str, Any] = {}
    if host_tokens:
        ssd = {"path": str(folder / "ssd"), "cap": SSD_BYTES, "free_floor": 0}
        below = {"ssd": ssd} if shared is None else {"shared": {"url": str(shared)}}
        tiers = {"host": max(host_tokens * KV_BYTES, LEAST_HOST[engine]), **below}
    shape = SHAPES[engine](gpu_tokens)
    allotted = Tiers.model_validate(tiers)
    with running_replicas(count, engine, shares=shares, tiers=allotted, **shape) as replicas:
        yield replicas


def _vllm(gpu_tokens: int) -> dict[str, Any]:
    blocks = -(-gpu_tokens // BLOCK) + 1  # vLLM keeps one to itself
    flags = ("--max-model-len=8192", f"--num-gpu-blocks-override={blocks}", "--enable-prompt-tokens-details")
    return {"block_tokens": BLOCK, "extra": flags}


def _sglang(gpu_tokens: int) -> dict[str, Any]:
    return {"kv_tokens": gpu_tokens}


SHAPES = {"vllm": _vllm, "sglang": _sglang}
