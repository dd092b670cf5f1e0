"""The engine as its agent sees it."""

import vllm
from vllm.config import VllmConfig
from vllm.distributed.kv_events import ZmqEventPublisher

from cache.hierarchy import Hierarchy
from cache.prefix import Tokens
from cache.stores.base import SharedStore
from engine_adapters.agent.base import Facts, Inside, Prompt
from engine_adapters.errors import AgentRefused
from engine_adapters.wire import TierInfo

from . import identity
from .namespaces import Namespaces
from .prompts import Hasher


class VllmInside(Inside):
    """A vLLM engine, or one of its data-parallel ranks, as its agent sees it."""

    def __init__(
        self,
        tiers: Hierarchy,
        config: VllmConfig,
        namespaces: Namespaces,
        hasher: Hasher,
        shared: SharedStore | None,
        gpu_bytes: int,
    ) -> None:
        super().__init__(tiers)
        self._config = config
        self._namespaces = namespaces
        self._hasher = hasher
        self._shared = shared
        self._gpu_bytes = gpu_bytes

    def facts(self) -> Facts:
        """What the engine is."""
        rank = self._config.parallel_config.data_parallel_index
        events, replay = (_of_rank(one, rank) for one in events_of(self._config))
        return Facts(
            engine=identity.ENGINE,
            engine_version=vllm.__version__,
            model=_model(self._config),
            namespace=self._namespaces.plain,
            loras={name: one.namespace for name, one in self._namespaces.adapters().items()},
            store_id=self._shared.store_id if self._shared is not None else "",
            tiers={"gpu": TierInfo(capacity_bytes=self._gpu_bytes)},
            events=events,
            replay=replay,
        )

    def prompt(self, tokens: Tokens, salt: str | None, lora: str | None) -> Prompt:
        """What the pages of a request with it would be called. Raises AgentRefused."""
        longest = self._config.model_config.max_model_len
        if len(tokens) > longest:
            raise AgentRefused("too_large", f"{len(tokens)} tokens are more than the model takes, {longest}")
        page_tokens = self.tiers.settings.page_tokens
        if lora is None:
            keys = self._hasher.keys(tokens, salt or None, None)
            return Prompt(self._namespaces.plain, keys, tokens, page_tokens, salt or None)
        adapter = self._namespaces.adapters().get(lora)
        if adapter is None:
            raise AgentRefused(
                "unknown_lora", f"no request for LoRA {lora!r} has come yet: its content is read at the first"
            )
        keys = self._hasher.keys(tokens, salt or None, adapter.lora)
        return Prompt(adapter.namespace, keys, tokens, page_tokens, salt or None, lora)


def events_of(config: VllmConfig) -> tuple[str, str]:
    """Where the first rank's KV events are, and their replay, as it binds them; empty: nowhere."""
    events = config.kv_events_config
    if events is None or not events.enable_kv_cache_events or events.publisher != "zmq":
        return "", ""
    return events.endpoint, events.replay_endpoint or ""


def _of_rank(endpoint: str, rank: int) -> str:
    return ZmqEventPublisher.offset_endpoint_port(endpoint, rank) or ""


def _model(config: VllmConfig) -> str:
    served = config.model_config.served_model_name
    return served if isinstance(served, str) else served[0]
