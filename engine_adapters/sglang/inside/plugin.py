"""By this plugin SGLang tells our storage backend what its calls don't carry (group `sglang.srt.plugins`).

Each hook is called on the scheduler's thread; none raises into it.
"""

import functools
import logging
import os
import re
import threading
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from engine_adapters.sglang.flags import BACKEND
from engine_adapters.sglang.settings import told_settings

from . import identity
from .desk import Drop, Fetch
from .names import Owner

if TYPE_CHECKING:
    from .storage import HpkvStorage

logger = logging.getLogger("sglang.srt.hpkv")

CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
ATTACHMENT = "sglang.srt.mem_cache.unified_cache.storage_attachment.StorageAttachment"
BREATH_S: Final = 0.0005
LAST_S: Final = 5.0
"""For what waits to be stored when SGLang ends; it kills a scheduler that takes 15 s."""
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
ARGUMENTS = "sglang.srt.server_args.ServerArgs"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
loaded = threading.Event()
"""Set once SGLang has called `register`."""
reweighted = threading.Event()
"""Set once somebody has replaced weights of the running engine: nobody knows any more what to call pages."""
_LORA = re.compile(r"[0-9a-f]{32}$")
"""SGLang's id of one, at the end of an extra key."""


def _quietly(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook whose failure is logged, and nothing else."""

    @functools.wraps(hook)
    def quiet(*args: Any, **kwargs: Any) -> None:
        try:
            hook(*args, **kwargs)
        except Exception:
            logger.exception("%s failed; the request goes on", hook.__name__)

    return quiet


def check_settings(arguments: Any) -> None:
    """Before SGLang loads a model: whether our settings can be read, and be of use. Raises SettingsError."""
    if arguments.hicache_storage_backend != "dynamic":
        return
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController as Controller

    told, *_ = Controller.parse_storage_backend_extra_config(arguments.hicache_storage_backend_extra_config)
    if told.get("class_name") == BACKEND["class_name"]:
        told_settings(told, os.environ)
        identity.refuse_arguments(arguments)


def back_up(original: Callable[..., None], cache: Any, node_id: Any) -> None:
    """A node is to be written to storage: note its pages' names first, and don't if they are a LoRA's."""
    if _backend() is not None:
        extra_key, salt = cache.tree_core.prefetch_anchor_info(node_id)
        if _of_lora(extra_key):
            return
        _note_backup(cache, node_id, Owner(salt, extra_key))
    original(cache, node_id)


def fetch(
    original: Callable[..., bool | None],
    cache: Any,
    request: Any,
    last_host_node_id: Any,
    new_input_tokens: Any,
    last_hash: str | None = None,
    prefix_keys: Any = None,
    matched_prefix_tokens: Any = None,
    extra_key: str | None = None,
    cache_salt: str | None = None,
    storage_hit_end: int | None = None,
) -> bool | None:
    """A prompt's pages are to be looked up in storage: the same; and don't if they are on their way."""
    backend = _backend()
    if backend is not None:
        if _of_lora(extra_key):
            return None
        tokens = array("q", matched_prefix_tokens or ()) + array("q", new_input_tokens)
        _note_prompt(cache, tokens, len(matched_prefix_tokens or ()), Owner(cache_salt, extra_key))
        if extra_key is None and backend.carrier(cache).join(request, tokens, cache_salt):
            return None
    return original(
        cache,
        request,
        last_host_node_id,
        new_input_tokens,
        last_hash,
        prefix_keys,
        matched_prefix_tokens=matched_prefix_tokens,
        extra_key=extra_key,
        cache_salt=cache_salt,
        storage_hit_end=storage_hit_end,
    )


def wait_for_joined(original: Callable[..., bool], cache: Any, request: Any) -> bool:
    """Whether a request needn't wait for storage any more, by SGLang's policy."""
    backend = _backend()
    return original(cache, request if backend is None else backend.carrier(cache).stand_in(request))


def _of_lora(extra_key: str | None) -> bool:
    """Whether the LoRA is in it that made the pages.

    SGLang calls one by its name and path, whatever lies there: in storage, which outlives the engine, pages
    of other weights could be under the same key. Without LoRAs, an extra key is a client's own.
    """
    return extra_key is not None and identity.serves_loras() and _LORA.search(extra_key) is not None


@_quietly
def _note_backup(cache: Any, node_id: Any, owner: Owner) -> None:
    backend = _backend()
    spec = cache.tree_core.build_storage_backup_spec(node_id, True)
    if backend is not None and spec is not None:
        parent = spec.prefix_keys[-1] if spec.prefix_keys else None
        backend.names.note(spec.hash_value, spec.token_ids, parent, owner)


@_quietly
def _note_prompt(cache: Any, tokens: "array[int]", matched: int, owner: Owner) -> None:
    """What comes from storage has its names from here. What SGLang has itself is in use there, too."""
    backend = _backend()
    if backend is None:
        return
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    key = RadixKey(tokens, extra_key=owner.extra_key, cache_salt=owner.salt).page_aligned(cache.page_size)
    keys = get_storage_hash_str(key, None, page_size=cache.page_size)
    backend.names.note(keys, tokens, None, owner)
    backend.touch(keys[: matched // cache.page_size])


@_quietly
def learn_prefill(result: None, scheduler: Any, batch: Any, output: Any) -> None:
    """A step's output is there: how fast prompts are computed, so that only what beats it is loaded."""
    backend = _backend()
    if backend is not None and batch.launch_ts:
        tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else 0
        if (prefill := backend.prefills.ended(tokens, batch.launch_ts)) is not None:
            backend.tiers.saw_prefill(*prefill)


@_quietly
def turn_on(result: None, attachment: Any, **knobs: Any) -> None:
    """When storage turns on: SGLang's threshold is ours, whoever has set it, and we stop when it stops."""
    backend, cache = _backend(), attachment._cache
    if backend is not None and cache.enable_storage:
        controller = cache.cache_controller
        threshold = max(backend.settings.token_threshold, cache.page_size)
        cache.prefetch_threshold = controller.prefetch_threshold = threshold
        backend.heed(controller.storage_stop_event)


@_quietly
def retire(updater: Any, *_: Any) -> None:
    """Before weights are replaced: what is in storage means nothing to new ones, nor theirs to others."""
    reweighted.set()
    backend = _backend()
    if backend is not None:
        logger.warning("weights are replaced: nothing is stored or loaded below host until the next start")
        backend.retire()


def send_orders(
    original: Callable[..., list[Any]],
    receiver: Any,
    requests: list[Any] | None,
    own: list[Any] | None = None,
) -> list[Any]:
    """Requests go from the first rank to all of them: prefetches that were ordered go, too."""
    backend = _backend()
    orders = backend.desk.take() if backend is not None and backend.desk is not None else []
    return original(receiver, requests, [*(own or ()), *orders])


@_quietly
def know_orders(result: None, scheduler: Any) -> None:
    """When the scheduler learns what kinds of requests there are: orders are another."""
    dispatcher = scheduler._request_dispatcher
    dispatcher += type(dispatcher)([(kind, functools.partial(_order, scheduler)) for kind in (Fetch, Drop)])


@_quietly
def tend_orders(result: None, cache: Any) -> None:
    """After the radix cache has seen which loads have ended."""
    backend = _backend()
    if backend is not None:
        backend.carrier(cache).tend()


@_quietly
def forget_orders(result: None, cache: Any) -> None:
    """After the radix cache was emptied."""
    backend = _backend()
    if backend is not None:
        backend.carrier(cache).forget()


@_quietly
def end_storage(cache: Any) -> None:
    """SGLang ends, and is about to give host memory back: the gateway is told, what waits there is stored,
    then storage goes."""
    _storage().leave_gateway()
    if _backend() is not None:
        deadline = time.monotonic() + LAST_S
        while cache.ongoing_backup and time.monotonic() < deadline:
            time.sleep(BREATH_S)
            cache.drain_storage_control_queues_local()
        cache.shutdown()


def stay_awake(original: Callable[[Any], None], scheduler: Any) -> None:
    """An idle scheduler may sleep for a second: not while a prefetch needs its steps, or is ordered."""
    backend = _backend()
    if backend is None or scheduler.idle_sleeper is None:
        return original(scheduler)
    if backend.carrier(scheduler.tree_cache).busy:
        time.sleep(BREATH_S)
        return None
    poller = getattr(scheduler.idle_sleeper, "poller", None)
    if backend.desk is not None and poller is not None:
        backend.desk.rouse(poller)
    return original(scheduler)


@_quietly
def _order(scheduler: Any, order: Fetch | Drop) -> None:
    backend = _backend()
    if backend is not None:
        backend.carrier(scheduler.tree_cache).do(order)


def register() -> None:
    """Called by SGLang in each of its processes, before it makes anything."""
    loaded.set()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{ARGUMENTS}.check_server_args", check_settings, HookType.BEFORE)
    HookRegistry.register(f"{CACHE}.write_backup_storage", back_up, HookType.AROUND)
    HookRegistry.register(f"{CACHE}.prefetch_from_storage", fetch, HookType.AROUND)
    HookRegistry.register(f"{CACHE}.check_prefetch_progress", wait_for_joined, HookType.AROUND)
    HookRegistry.register(f"{CACHE}.reset", forget_orders, HookType.AFTER)
    HookRegistry.register(f"{CACHE}.release_host_resources", end_storage, HookType.BEFORE)
    HookRegistry.register(f"{ATTACHMENT}.apply_runtime_config", turn_on, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.process_batch_result", learn_prefill, HookType.AFTER)
    HookRegistry.register(f"{RECEIVER}._broadcast_reqs_across_ranks", send_orders, HookType.AROUND)
    HookRegistry.register(f"{SCHEDULER}.init_request_dispatcher", know_orders, HookType.AFTER)
    HookRegistry.register(f"{SCHEDULER}.maybe_sleep_on_idle", stay_awake, HookType.AROUND)
    HookRegistry.register(f"{CACHE}.check_hicache_events", tend_orders, HookType.AFTER)
    for way in ("disk", "distributed", "tensor", "ipc"):
        HookRegistry.register(f"{UPDATER}.update_weights_from_{way}", retire, HookType.BEFORE)


def _storage() -> "type[HpkvStorage]":
    from .storage import HpkvStorage  # only once there is one: it imports SGLang

    return HpkvStorage


def _backend() -> "HpkvStorage | None":
    return _storage().current
