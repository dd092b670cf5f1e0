"""Imported at the start of each Python of the CPU environment (by a `.pth` file): two packages that SGLang
imports have no build for a CPU.

- `sgl_kernel` is CUDA code: `kernels.py` stands in for it.
- torchvision's compiled half is linked to CUDA and doesn't load, but its Python half registers fake kernels
  for that half's operators, which must be declared then.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

KERNELS = Path(__file__).with_name("kernels.py")

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class Finder(MetaPathFinder):
    """Finds `sgl_kernel` here, and prepares torch for torchvision."""

    def __init__(self) -> None:
        self._library: object = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As `MetaPathFinder.find_spec`."""
        if fullname == "sgl_kernel":
            return importlib.util.spec_from_file_location(fullname, KERNELS)
        if fullname == "torchvision" and self._library is None:
            self._library = _declare_operators()
        return None


def _declare_operators() -> object:
    """Returns what keeps the declarations alive."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in _OPERATORS:
        library.define(operator)
    return library


sys.meta_path.insert(0, Finder())
