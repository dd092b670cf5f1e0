"""What vLLM would call the pages of a prompt that nobody has sent yet."""

import time
from dataclasses import dataclass, field

from vllm.lora.request import LoRARequest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

from cache.prefix import Tokens

from .namespaces import Lora

_AT_ONCE = 64
"""Hashes between two chances for the scheduler: some 0.1 ms."""


@dataclass(slots=True)
class _Request:
    """Of a vLLM request, what its block hashes are made of."""

    all_token_ids: list[int]
    cache_salt: str | None
    lora_request: LoRARequest | None
    num_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    mm_features: tuple[()] = ()
    prompt_embeds: None = None


class Hasher:
    """Names pages by vLLM's own hasher, which goes on from a request's last hash."""

    def __init__(self, algorithm: str, tokens_per_hash: int, page_tokens: int) -> None:
        """`algorithm` is `--prefix-caching-hash-algo`, one of the cryptographic ones."""
        function = get_hash_fn_by_name(algorithm)
        init_none_hash(function)  # as vLLM does itself a moment later, with the same result
        self._hash = get_request_block_hasher(tokens_per_hash, function)
        self._step = tokens_per_hash * _AT_ONCE
        self._page_tokens = page_tokens
        self._hashes_per_page = page_tokens // tokens_per_hash

    def keys(self, tokens: Tokens, salt: str | None, lora: Lora | None) -> list[bytes]:
        """Keys of all whole pages."""
        whole = len(tokens) // self._page_tokens * self._page_tokens
        adapter = LoRARequest(lora.name, 1, lora.path) if lora is not None else None
        request = _Request(tokens[:whole].tolist(), salt, adapter)
        while request.num_tokens < whole:
            request.num_tokens = min(request.num_tokens + self._step, whole)
            request.block_hashes += self._hash(request)
            time.sleep(0)  # let go of the interpreter, in case somebody waits for it
        return request.block_hashes[self._hashes_per_page - 1 :: self._hashes_per_page]
