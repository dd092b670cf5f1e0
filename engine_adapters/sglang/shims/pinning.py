"""Pinned memory, which adapters (LoRA) ask for and which a machine without a GPU doesn't have."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_MAKERS = ("empty", "tensor", "zeros")


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return make(*args, **kwargs)

    return made


def do_without() -> None:
    """From now on, memory that is to be pinned is plain."""
    for name in _MAKERS:
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, device=None: self
