"""The part of SGLang's command line that is ours, and the flags that it can't be mixed with."""

import json
from collections.abc import Mapping
from typing import Any

from cache.sizes import format_size
from engine_adapters.errors import SettingsError
from engine_adapters.flags import Endpoints
from engine_adapters.settings import Settings

CLASHES = {
    "--kv-events-config": "use --events and --replay",
    "--disable-radix-cache": "without a prefix cache there is nothing to keep",
    "--model-path": "the model is the argument before --",
}

TIER_CLASHES = {
    "--hicache-size": "use --tiers host=SIZE",
    "--hicache-ratio": "use --tiers host=SIZE",
    "--hicache-host-memory-mode": "host memory is a tier here, not a buffer",
    "--hicache-write-policy": "set HPKV_CACHE__WRITE to through, back or selective",
    "--hicache-storage-backend": "use --tiers",
    "--hicache-storage-backend-extra-config": "use --tiers, and variables for the rest",
    "--enable-unified-cache-external-linker": "it replaces the host tier",
    "--enable-lmcache": "it replaces the host tier",
    "--enable-flexkv": "it replaces the host tier",
    "--radix-cache-backend": "the tiers lie under SGLang's own",
}
"""Beside those, with tiers."""

BACKEND = {
    "backend_name": "hpkv",
    "module_path": "engine_adapters.sglang.inside.storage",
    "class_name": "HpkvStorage",
    "interface_v1": 1,
}
LAYOUTS = ("page_first", "page_first_direct", "page_first_kv_split")
"""Of SGLang's host memory, in which a page's bytes are a few large buffers."""
WRITE = {"through": "write_through", "back": "write_back", "selective": "write_through_selective"}
GB = 10**9
"""In which SGLang counts host memory."""

PAGE_TOKENS = 16


def watched(endpoints: Endpoints) -> list[str]:
    """Return the flags by which the gateway knows what a replica holds. The user's own come after them."""
    events = {
        "publisher": "zmq",
        "endpoint": endpoints.events,
        "replay_endpoint": endpoints.replay,
        "topic": "kv",
        "format": "dynamo",  # by default a prompt with an extra key has the hashes of one without
    }
    return [
        "--enable-cache-report",  # cached_tokens in usage
        "--enable-metrics",
        f"--page-size={PAGE_TOKENS}",  # SGLang's default is 1: an event's bytes for each token
        f"--kv-events-config={json.dumps(events)}",
    ]


def refuse_unserved(layout: str, context_ranks: int) -> None:
    """Raise SettingsError where pages of SGLang's host memory can't be stored as they lie there.

    `context_ranks` share a page's tokens.
    """
    if layout not in LAYOUTS:
        raise SettingsError(
            f"--hicache-mem-layout={layout} scatters a page over many small buffers: use page_first, or "
            "page_first_direct with --hicache-io-backend=direct"
        )
    if context_ranks > 1:
        raise SettingsError("context parallelism splits a page's tokens over ranks: not served with tiers")


def each_host(settings: Settings, ranks: int) -> int:
    """GB of each rank's host memory; what is beyond is left out. Raises SettingsError for less than one."""
    host = settings.host or 0
    each = host // ranks // GB
    if each < 1:
        raise SettingsError(
            f"host: SGLang counts each rank's host memory in whole GB, and {format_size(host)} is less than "
            f"{ranks} GB: make it host={ranks}GB or more"
        )
    return each


def tiered(settings: Settings, configuration: Mapping[str, Any], ranks: int) -> list[str]:
    """Return the flags for SGLang's host tier, and those that put ours below it.

    `ranks` share `host`: each has a part of every page. `configuration` is as `load_settings` takes it.
    Raises SettingsError.
    """
    ours = [
        "--enable-hierarchical-cache",
        f"--hicache-size={each_host(settings, ranks)}",
        f"--hicache-write-policy={WRITE[settings.write]}",
    ]
    if settings.ssd is None and settings.shared is None:
        return ours
    extra = {**BACKEND, "prefetch_threshold": settings.token_threshold, **configuration}
    return [
        *ours,
        "--hicache-storage-backend=dynamic",
        f"--hicache-storage-backend-extra-config={json.dumps(extra)}",
    ]
