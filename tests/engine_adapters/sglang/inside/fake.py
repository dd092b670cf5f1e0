"""SGLang's side of its contract with our plugin: what a scheduler and its radix cache do for prefetches."""

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

PAGE = 16


class RadixKey(NamedTuple):
    token_ids: Sequence[int]
    extra_key: str | None = None
    cache_salt: str | None = None

    def page_aligned(self, page: int) -> "RadixKey":
        return self._replace(token_ids=self.token_ids[: len(self.token_ids) // page * page])


class MatchPrefixParams(NamedTuple):
    key: RadixKey


class CacheRequestHandle(NamedTuple):
    rid: str
    generation: int


def install(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> None:
    """Let `sglang`'s modules be found that the plugin imports while it runs."""
    told = SimpleNamespace(**{"enable_lora": False, "lora_paths": None, **arguments})
    modules: dict[str, dict[str, Any]] = {
        "sglang.srt.mem_cache.base_prefix_cache": {
            "MatchPrefixParams": MatchPrefixParams,
            "CacheRequestHandle": CacheRequestHandle,
        },
        "sglang.srt.mem_cache.radix_cache": {"RadixKey": RadixKey},
        "sglang.srt.mem_cache.utils": {"get_storage_hash_str": hashes},
        "sglang.srt.runtime_context": {"get_server_args": lambda: told},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for parent in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))


def hashes(key: RadixKey, last_hash: str | None, page_size: int) -> list[str]:
    """Names of a prompt's pages, as good as any."""
    ends = range(page_size, len(key.token_ids) + 1, page_size)
    return [f"{hash((tuple(key.token_ids[:end]), *key[1:])) & (1 << 64) - 1:064x}" for end in ends]


class Found(NamedTuple):
    device_prefix_len: int
    host_hit_length: int
    last_host_node: int


class Lock(NamedTuple):
    node: int

    def to_dec_params(self) -> "Lock":
        return self


class Cache:
    """One rank's radix cache: what `host` has, what storage has, and whom it has locked."""

    page_size = PAGE
    enable_storage = True

    def __init__(self, stored: int = 0, host_tokens: int = 1 << 20) -> None:
        """`stored` leading tokens of any prompt lie in storage."""
        self.stored = stored
        self.host = 0
        self.device_alone: set[int] = set()
        self.locks = 0
        self.calls: list[tuple[Any, ...]] = []
        self.ongoing_prefetch: dict[CacheRequestHandle, Any] = {}
        self.loaded: dict[CacheRequestHandle, int] = {}
        self.cache_controller = SimpleNamespace(mem_pool_host=SimpleNamespace(size=host_tokens))

    def match_prefix(self, params: MatchPrefixParams) -> Found:
        return Found(0, min(self.host, len(params.key.token_ids)), self.host // PAGE)

    def is_root(self, node: int) -> bool:
        return node == 0

    def is_backuped(self, node: int) -> bool:
        return node not in (0, *self.device_alone)

    def get_last_hash_value(self, node: int) -> str | None:
        return f"hash of {node}" if node else None

    def prefetch_from_storage(
        self,
        handle: CacheRequestHandle,
        node: int,
        tokens: Sequence[int],
        last: str | None,
        *_: Any,
        **more: Any,
    ) -> None:
        self.calls.append(("prefetch", handle.rid, node, len(tokens), last, more["cache_salt"]))
        self.ongoing_prefetch[handle] = SimpleNamespace(operation=SimpleNamespace(completed_tokens=0))

    def has_ongoing_prefetch(self, handle: CacheRequestHandle) -> bool:
        return handle in self.ongoing_prefetch

    def pop_prefetch_loaded_span(self, handle: CacheRequestHandle) -> tuple[int, None]:
        return self.loaded.pop(handle, 0), None

    def release_aborted_request(self, handle: CacheRequestHandle) -> None:
        self.calls.append(("release", handle.rid))
        self.ongoing_prefetch.pop(handle, None)

    def inc_host_lock_ref(self, node: int) -> Lock:
        self.locks += 1
        self.calls.append(("lock", node))
        return Lock(node)

    def dec_host_lock_ref(self, node: int, lock: Lock) -> None:
        assert lock.node == node
        self.locks -= 1
        self.calls.append(("unlock", node))


def finish(ranks: Sequence[Cache]) -> None:
    """SGLang ends the oldest prefetch on all ranks together, with as much as all of them have."""
    tokens = min(cache.stored for cache in ranks)
    for cache in ranks:
        handle = next(iter(cache.ongoing_prefetch))
        del cache.ongoing_prefetch[handle]
        cache.host = max(cache.host, tokens)
        cache.loaded[handle] = tokens
