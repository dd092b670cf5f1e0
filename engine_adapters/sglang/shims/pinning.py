"""Pinned memory, which SGLang's LoRA backends ask for: plain memory, as there is no device to pin it for."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

FACTORIES = ("arange", "empty", "tensor", "zeros")
"""Of `torch`, with which SGLang makes pinned tensors."""


def unpinned(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A factory that doesn't heed `pin_memory`."""

    @wraps(factory)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return factory(*args, **kwargs)

    return make


def install() -> None:
    """Have torch give plain memory."""
    for name in FACTORIES:
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self: self
