"""The list that SGLang's CPU environment is made from."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import engine_adapters.sglang
from engine_adapters.sglang.environment import CPU, VERSION


@pytest.fixture(scope="module")
def requirements() -> dict[str, str]:
    """Name → what follows it up to the next name."""
    blocks = re.split(r"^(?=\w)", CPU.requirements.read_text(), flags=re.MULTILINE)
    return dict(block.split("==", 1) for block in blocks if block)


def test_each_requirement_is_pinned_and_hashed(requirements: dict[str, str]) -> None:
    assert all("--hash=sha256:" in rest for rest in requirements.values())


def test_sglang_is_of_the_version_whose_answers_are_known(requirements: dict[str, str]) -> None:
    assert requirements["sglang"].startswith(VERSION + " ")


def test_torch_is_the_cpu_build_and_kernels_for_gpus_are_left_out(requirements: dict[str, str]) -> None:
    assert requirements["torch"].split()[0].endswith("+cpu")
    gpu = {"sglang-kernel", "flashinfer-python", "cuda-python", "torchaudio", "torchcodec"}
    assert not gpu & requirements.keys()


def test_what_it_names_of_ours_is_there() -> None:
    folder = Path(engine_adapters.sglang.__file__).parent
    plugins = [
        EntryPoint(*(part.strip() for part in line.split("=")), "sglang.srt.plugins")
        for line in CPU.entry_points.splitlines()[1:]
    ]
    assert {folder.parent.parent / f"{module.replace('.', '/')}.py" for module in CPU.starts} == {
        folder / "shims/start.py"
    }
    assert {plugin.name: plugin.module for plugin in plugins} == {
        "hpkv": "engine_adapters.sglang.inside.plugin",
        "hpkv_cpu": "engine_adapters.sglang.shims.plugin",
    }
    assert (folder / "shims/plugin.py").is_file()
    assert (folder / "inside/plugin.py").is_file()
