"""Prefill attention on CPU that computes the new tokens alone.

SGLang's own (`TorchNativeAttnBackend`) pads the queries to the length of the whole sequence and computes them
all, so that a cached prefix saves none of its attention.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

TARGET = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend._run_sdpa_forward_extend"


def extend(
    original: Callable[..., torch.Tensor],
    self: object,
    *args: torch.Tensor,
    encoder_lens: torch.Tensor | None = None,
    scaling: float | None = None,
    enable_gqa: bool = False,
    causal: bool = False,
    is_cross_attn: bool = False,
    sliding_window_size: int | None = None,
) -> torch.Tensor:
    """Takes the place of `TARGET`; cross attention and sliding windows are left to the original."""
    *tensors, lengths = args if len(args) > 9 else (*args, encoder_lens)
    windowed = sliding_window_size is not None and sliding_window_size > -1
    if lengths is None and not is_cross_attn and not windowed:
        return _extend(*tensors, scaling=scaling, enable_gqa=enable_gqa, causal=causal)
    return original(
        self,
        *tensors,
        lengths,
        scaling=scaling,
        enable_gqa=enable_gqa,
        causal=causal,
        is_cross_attn=is_cross_attn,
        sliding_window_size=sliding_window_size,
    )


def _extend(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    *,
    scaling: float | None,
    enable_gqa: bool,
    causal: bool,
) -> torch.Tensor:
    """Queries and output are [new tokens of all sequences, heads, head size]; caches [slots, KV heads, head
    size]; `req_to_token` [requests, positions] names each token's slot."""
    at = 0
    for row, length, prefix, new in zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_prefix_lens.tolist(),
        extend_seq_lens.tolist(),
        strict=True,
    ):
        slots = req_to_token[row, :length]
        queries = query[at : at + new].transpose(0, 1).unsqueeze(0)
        keys, values = (
            cache[slots].transpose(0, 1).unsqueeze(0).to(query.dtype) for cache in (k_cache, v_cache)
        )
        mask = _mask(prefix, new) if causal and prefix else None
        attended = scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=causal and not prefix,
            scale=scaling,
            enable_gqa=enable_gqa,
        )
        output[at : at + new] = attended.squeeze(0).transpose(0, 1)
        at += new
    return output


def _mask(prefix: int, new: int) -> torch.Tensor:
    """Which of prefix + new keys each new query sees: those up to itself."""
    return torch.ones(new, prefix + new, dtype=torch.bool).tril(prefix)
