"""SGLang as its agent sees it: what prompts' pages are called, and prefetches that the scheduler does."""

from array import array

from cache.hierarchy import Hierarchy
from cache.keys import Namespace
from cache.plan import Plan
from cache.prefix import Tokens
from cache.stores.base import SharedStore
from engine_adapters.agent.base import Facts, Inside, Loading, Looking, Prompt
from engine_adapters.errors import AgentRefused

from . import identity
from .desk import Desk


class SglangInside(Inside):
    """Of one engine, on its first rank."""

    def __init__(
        self, tiers: Hierarchy, namespace: Namespace, shared: SharedStore | None, desk: Desk
    ) -> None:
        super().__init__(tiers)
        self._namespace = namespace
        self._shared = shared
        self._desk = desk
        self.retired = False
        """Whether weights were replaced."""

    def facts(self) -> Facts:
        """What the engine is. Of `gpu` and `host` SGLang tells itself, by its KV events."""
        from sglang.version import __version__

        events, replay = identity.events()
        return Facts(
            engine=identity.ENGINE,
            engine_version=__version__,
            model=identity.model(),
            namespace=self._namespace,
            store_id=self._shared.store_id if self._shared is not None else "",
            events=events,
            replay=replay,
            retired=self.retired,
        )

    def prompt(self, tokens: Tokens, salt: str | None, lora: str | None) -> Prompt:
        """A request's pages, by SGLang's own hash. Raises AgentRefused for a LoRA, whose aren't stored."""
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.mem_cache.utils import get_storage_hash_str

        if lora is not None:
            raise AgentRefused("unknown_lora", "SGLang's pages of LoRA adapters stay in gpu and host")
        size = self.tiers.settings.page_tokens
        ids = array("q", tokens[: len(tokens) // size * size].tolist())
        keys = get_storage_hash_str(RadixKey(ids, cache_salt=salt), None, page_size=size) if ids else []
        return Prompt(self._namespace, [bytes.fromhex(key) for key in keys], tokens, size, salt)

    def look(self, prompt: Prompt, start: int) -> Looking:
        """As `Inside.look`. Raises AgentRefused once weights were replaced."""
        if self.retired:
            raise AgentRefused("failed", "this engine's weights were replaced: tiers below host are off")
        return super().look(prompt, start)

    def prefetch(self, prompt: Prompt, start: int, plan: Plan, seconds: float) -> Loading:
        """Leave an order for the scheduler; the agent ends it when its time is over."""
        self.tiers.count_prefetch()
        end = (start + plan.cut) * prompt.page_tokens
        return self._desk.fetch(array("q", prompt.tokens[:end].tolist()), prompt.salt, plan.pages)
