"""A stand-in for the package `sgl_kernel`: what SGLang calls on a CPU that has no AMX, in plain torch."""

from collections.abc import Callable
from typing import Any, Never

import torch

__version__ = "0.4.10"  # SGLang asks for this one


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Note where the KV of each request's tokens [start, end) lies: the slots come one request after
    another."""
    slots = out_cache_loc.to(req_to_token.dtype)
    at = 0
    for row, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        req_to_token[row, start:end] = slots[at : at + end - start]
        at += end - start


def __getattr__(name: str) -> Callable[..., Never]:
    """Every other kernel: its import succeeds, its call says what is missing."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Never:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in for CPU")

    missing.__name__ = name
    return missing
