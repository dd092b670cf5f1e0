"""vLLM's environment for CPU replicas."""

from pathlib import Path

from engine_adapters.up.environments import Recipe

VERSION = "0.32.0"

CPU = Recipe(
    name="vllm",
    requirements=Path(__file__).with_name("requirements-cpu.txt"),
    # vLLM asks for its own version as "vllm", and "cpu" in it selects the platform.
    aliases=(("vllm", f"{VERSION}+cpu"),),
    imports=("torch", "vllm"),
    hint="The list wants torch's CPU build for Python 3.11 on Linux x86-64: if pip has not found it, point "
    "PIP_EXTRA_INDEX_URL at PyTorch's index of CPU builds. ",
)
