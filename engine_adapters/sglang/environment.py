"""SGLang's environment for CPU replicas."""

from pathlib import Path

from engine_adapters.up.environments import Recipe

VERSION = "0.5.23"

_PLUGINS = """\
[sglang.srt.plugins]
hpkv = engine_adapters.sglang.inside.plugin:register
hpkv_cpu = engine_adapters.sglang.shims.plugin:register
"""

CPU = Recipe(
    name="sglang",
    requirements=Path(__file__).with_name("requirements-cpu.txt"),
    aliases=(),
    imports=("torch", "sgl_kernel", "torchvision", "sglang.srt.plugins"),
    hint="The list wants torch's CPU build for Python 3.11 on Linux x86-64: if pip has not found it, point "
    "PIP_EXTRA_INDEX_URL at PyTorch's index of CPU builds. ",
    entry_points=_PLUGINS,
    starts=("engine_adapters.sglang.shims.start",),
)
