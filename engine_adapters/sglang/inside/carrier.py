"""Prefetches in SGLang's scheduler, on each of its ranks: what the desk has ordered, by SGLang's own calls.

The ranks do the same at the same time: orders come with the requests, and SGLang lets all ranks know of a
load's end together.
"""

from array import array
from typing import Any, NamedTuple

from cache.tickets import Phase

from .desk import Desk, Drop, Fetch

SHARE = 0.5
"""Of host memory, the most that all prefetches keep, prompts counted whole: while a page is kept, none before
it can go."""
_OWN = "hpkv-prefetch-"
"""With this begin our requests' ids."""


class _Kept(NamedTuple):
    """Pages in host memory that must not go: a node of the radix tree, and what unlocks it."""

    node: Any
    lock: Any


class Carrier:
    """One rank's. Called by its scheduler's thread alone."""

    def __init__(self, cache: Any, desk: Desk | None) -> None:
        """`cache` is SGLang's UnifiedRadixCache; `desk` wants to know, on the first rank."""
        self._cache = cache
        self._desk = desk
        self._open: dict[int, Fetch] = {}
        self._kept: dict[int, _Kept] = {}
        self._room: dict[int, int] = {}
        """Orders → tokens of host memory that they take, once they have begun."""
        self._joined: dict[Any, int] = {}
        """Requests' handles → the load under way that brings their prompts' pages."""

    @property
    def busy(self) -> bool:
        """Whether a load is under way, whose steps the scheduler has to take."""
        return bool(self._open)

    def do(self, order: Fetch | Drop) -> None:
        """Begin a prefetch, or let one go."""
        if isinstance(order, Fetch):
            self._begin(order)
        else:
            self._drop(order.number)

    def join(self, request: Any, tokens: "array[int]", salt: str | None) -> bool:
        """Whether what a request is about to look up is on its way already: it needn't be loaded twice.

        `request` is SGLang's handle of it, `tokens` are its prompt's from the start.
        """
        if request.rid.startswith(_OWN):
            return False
        for number, order in self._open.items():
            ours = len(order.tokens)
            if order.salt == salt and self._under_way(number) and tokens[:ours] == order.tokens:
                self._joined[request] = number
                return True
        return False

    def stand_in(self, request: Any) -> Any:
        """Whose load a request has to wait for: its own, or the one that it has joined."""
        number = self._joined.get(request)
        return self._handle(number) if number is not None and self._under_way(number) else request

    def tend(self) -> None:
        """After the scheduler has looked what its loads do: see which have ended."""
        for number, order in list(self._open.items()):
            handle = self._handle(number)
            if self._under_way(number):
                operation = self._cache.ongoing_prefetch[handle].operation
                self._tell(number, operation.completed_tokens, Phase.RUNNING)
                continue
            loaded, _ = self._cache.pop_prefetch_loaded_span(handle)
            self._cache.release_aborted_request(handle)  # what else it has noted of one that isn't admitted
            self._end(number)
            self._keep(number, order, loaded)
            self._tell(number, loaded, Phase.DONE)

    def forget(self) -> None:
        """The radix cache was emptied, with all locks in it; what is under way ends without pages."""
        for number in self._kept:
            del self._room[number]
            self._tell(number, 0, Phase.CANCELLED)
        self._kept.clear()

    def close(self) -> None:
        """Let all go."""
        for number in [*self._open, *self._kept]:
            self._drop(number)

    def _begin(self, order: Fetch) -> None:
        host = self._cache.cache_controller.mem_pool_host.size
        if sum(self._room.values()) + len(order.tokens) <= SHARE * host:
            self._room[order.number] = len(order.tokens)
            self._fetch(order)
        self._open[order.number] = order  # also one that was refused: `tend` finds it ended

    def _fetch(self, order: Fetch) -> None:
        found = self._match(order)
        matched = found.device_prefix_len + found.host_hit_length
        if not (self._cache.is_backuped(found.last_host_node) or self._cache.is_root(found.last_host_node)):
            return  # SGLang's tree bears no pages in host without those before them
        self._cache.prefetch_from_storage(
            self._handle(order.number),
            found.last_host_node,
            order.tokens[matched:],
            self._cache.get_last_hash_value(found.last_host_node),
            None,
            matched_prefix_tokens=order.tokens[:matched],
            extra_key=None,
            cache_salt=order.salt,
        )

    def _keep(self, number: int, order: Fetch, loaded: int) -> None:
        if loaded:
            node = self._match(order).last_host_node
            self._kept[number] = _Kept(node, self._cache.inc_host_lock_ref(node).to_dec_params())
        else:
            self._room.pop(number, None)

    def _drop(self, number: int) -> None:
        if number in self._open:
            self._end(number)
            self._cache.release_aborted_request(self._handle(number))
        self._room.pop(number, None)
        kept = self._kept.pop(number, None)
        if kept is not None:
            self._cache.dec_host_lock_ref(kept.node, kept.lock)

    def _end(self, number: int) -> None:
        del self._open[number]
        self._joined = {request: joined for request, joined in self._joined.items() if joined != number}

    def _under_way(self, number: int) -> bool:
        return bool(self._cache.has_ongoing_prefetch(self._handle(number)))

    def _match(self, order: Fetch) -> Any:
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        key = RadixKey(order.tokens, cache_salt=order.salt).page_aligned(self._cache.page_size)
        return self._cache.match_prefix(MatchPrefixParams(key=key))

    def _handle(self, number: int) -> Any:
        from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

        return CacheRequestHandle(f"{_OWN}{number}", 0)

    def _tell(self, number: int, tokens: int, phase: Phase) -> None:
        if self._desk is not None:
            self._desk.tell(number, tokens // self._cache.page_size, phase)
