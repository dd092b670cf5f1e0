"""SGLang's host tier (HiCache) where the device is a CPU too: memory, copies, events without a stream."""

import time
from collections.abc import Sequence
from typing import Any

import torch


class Event:
    """`torch.cpu` has no events, and nothing to wait for: work is done when its call returns."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._recorded_s = 0.0

    def record(self, stream: object = None) -> None:
        """Note the time."""
        self._recorded_s = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """Nothing is under way."""

    def query(self) -> bool:
        """All is done."""
        return True

    def elapsed_time(self, later: "Event") -> float:
        """Milliseconds between two recordings."""
        return (later._recorded_s - self._recorded_s) * 1e3


def allocate(
    dims: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    pin_memory: bool,
    allocator: Any,
    registration_granularity_bytes: int | None = None,
) -> torch.Tensor:
    """Host memory that isn't pinned: there is no device to pin it for."""
    memory: torch.Tensor = allocator.allocate(dims, dtype=dtype, device=device)
    return memory


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy tokens between pools of one layout, [tokens, heads, head size] each layer."""
    source, target = src_indices.long(), dst_indices.long()
    for here, there in zip(src_layers, dst_layers, strict=True):
        there[target] = here[source].view(-1, *there.shape[1:])


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Load one layer: from host [pages, layers, page size, …] to device [tokens, …], of K and of V."""
    pages, target = _pages(src_indices, page_size), dst_indices.long()
    for host, device in zip(src_ptrs, dst_ptrs, strict=True):
        device[target] = host[pages, layer_id].reshape(-1, *device.shape[1:])


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Back up all layers: from device, K of each layer and then V of each, to host [K, V]."""
    pages, source = _pages(dst_indices, page_size), src_indices.long()
    layers = len(src_ptrs) // len(dst_ptrs)
    for at, device in enumerate(src_ptrs):
        tokens = device[source]
        dst_ptrs[at // layers][pages, at % layers] = tokens.reshape(len(pages), page_size, *tokens.shape[1:])


TRANSFERS = (transfer_kv_direct, transfer_kv_per_layer_direct_pf_lf, transfer_kv_all_layer_direct_lf_pf)
"""Under the names that SGLang knows them by."""


def _pages(indices: torch.Tensor, page_size: int) -> torch.Tensor:
    """Pages of token indices that come in whole pages."""
    return indices.long()[::page_size] // page_size
