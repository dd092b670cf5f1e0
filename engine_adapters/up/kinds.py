"""The kinds of engines that a local fleet can have, and how each is made and started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_adapters.replica import LocalReplica
from engine_adapters.sglang import cpu as sglang
from engine_adapters.sglang import environment as sglang_environment
from engine_adapters.vllm import cpu as vllm
from engine_adapters.vllm import environment as vllm_environment

from .environments import Recipe


@dataclass(frozen=True)
class Kind:
    """One kind of engine on CPU.

    `title` is its name in sentences, `program` its command, `ready` the path that answers once it serves.
    """

    title: str
    program: str
    ready: str
    recipe: Recipe
    replica: Callable[..., LocalReplica]
    command: Callable[[Any, Path, Mapping[str, str]], list[str]]
    environment: Callable[[Any, Mapping[str, str]], dict[str, str]]


KINDS = {
    "vllm": Kind(
        "vLLM", "vllm", "/health", vllm_environment.CPU, vllm.CpuReplica, vllm.command, vllm.environment
    ),
    "sglang": Kind(
        "SGLang",
        "sglang",
        "/ready",
        sglang_environment.CPU,
        sglang.CpuReplica,
        sglang.command,
        sglang.environment,
    ),
}
