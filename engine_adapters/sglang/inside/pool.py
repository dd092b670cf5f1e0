"""SGLang's host pages as plain memory."""

import ctypes
from typing import Any

from cache.memory import Parts

Pool = Any
"""SGLang's HostKVCache."""


def pages(pool: Pool, indices: Any) -> list[Parts]:
    """The bytes of each page, where they lie. `indices` are tokens of the pool, whole pages of them.

    A page is one buffer or several, as SGLang's layout has it: K and V with `page_first*`.
    """
    pointers, sizes = pool.get_page_buffer_meta(indices)
    each = len(pointers) // (len(indices) // pool.page_size) if len(indices) else 1
    parts = [_view(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]
    return [parts[at : at + each] for at in range(0, len(parts), each)]


def page_bytes(pool: Pool) -> int:
    """Bytes of one page of this rank."""
    import torch

    _, sizes = pool.get_page_buffer_meta(torch.arange(pool.page_size))
    return int(sum(sizes))


def _view(pointer: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(pointer)).cast("B")
