"""What makes the bytes of this engine's pages meaningful, and which configurations can be served."""

import json
from pathlib import Path
from typing import Any

from cache.errors import SettingsError as CacheSettingsError
from cache.keys import Base
from engine_adapters import weights
from engine_adapters.errors import SettingsError
from engine_adapters.sglang import flags

from .pool import Pool

ENGINE = "sglang"


def base(config: Any, pool: Pool, memory: Path) -> Base:
    """The namespace's base, from SGLang's HiCacheStorageConfig. `memory` is a file that remembers weights.

    Raises SettingsError if the weights aren't there or the configuration can't be served.
    """
    from sglang.srt.arg_groups.model_override_base import attention_backends_of, resolved_view
    from sglang.srt.runtime_context import get_server_args

    arguments = resolved_view(get_server_args())
    refuse_arguments(arguments)
    refuse_unserved(config, pool)
    try:
        folder = weights.folder_of(arguments.model_path, arguments.revision)
        named = weights.named(folder, architecture(folder, arguments), memory)
    except (CacheSettingsError, OSError) as error:
        raise SettingsError(f"model: {error}") from error
    backends = dict.fromkeys(map(str, attention_backends_of(arguments)))
    quantization = f"/{arguments.quantization}" if arguments.quantization else ""
    return Base(
        weights=named,
        kv_dtype=f"{pool.dtype}{quantization}".replace("torch.", ""),
        kv_layout=f"{type(pool).__name__}/{pool.layout}",
        attention_backend="+".join(backends),
        page_tokens=pool.page_size,
        engine=ENGINE,
        tp_size=config.tp_size,
        tp_rank=0 if config.is_mla_model else config.tp_rank,
        pp_size=config.pp_size,
        pp_rank=config.pp_rank,
    )


def architecture(folder: Path, arguments: Any) -> dict[str, Any]:
    """What beside its weights a model's KV depends on: its configuration, and what arguments change in it."""
    settings: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    told = {
        "--json-model-override-args": json.loads(arguments.json_model_override_args or "{}"),
        "--dtype": "" if arguments.kv_cache_dtype == "auto" else arguments.dtype,  # else the pool tells it
        "--quantization-param-path": arguments.quantization_param_path,
        "--load-format": "dummy" if arguments.load_format == "dummy" else "",
    }
    return settings | {name: value for name, value in told.items() if value}


def model() -> str:
    """The name under which the engine serves."""
    from sglang.srt.runtime_context import get_server_args

    arguments = get_server_args()
    return str(arguments.served_model_name or arguments.model_path)


def has_metrics() -> bool:
    """Whether the engine's `/metrics` answers."""
    from sglang.srt.runtime_context import get_server_args

    return bool(get_server_args().enable_metrics)


def labels(config: Any) -> dict[str, str]:
    """What a rank's metrics are told apart by, as SGLang's own are."""
    ranks = {name: str(getattr(config, name)) for name in ("tp_rank", "pp_rank", "dp_rank")}
    return {"model_name": model(), **ranks}


def on_cpu() -> bool:
    """Whether the engine computes without an accelerator."""
    from sglang.srt.runtime_context import get_server_args

    return str(get_server_args().device) == "cpu"


def serves_loras() -> bool:
    """Whether the engine has LoRA adapters, or can be given some."""
    from sglang.srt.runtime_context import get_server_args

    arguments = get_server_args()
    return bool(arguments.enable_lora or arguments.lora_paths)


def events() -> tuple[str, str]:
    """Where the first rank's KV events are, and their replay, as it binds them; empty: nowhere."""
    from sglang.srt.runtime_context import get_server_args

    told = json.loads(get_server_args().kv_events_config or "{}")
    return told.get("endpoint") or "", told.get("replay_endpoint") or ""


def refuse_arguments(arguments: Any) -> None:
    """Raise SettingsError for arguments with which SGLang would not use us as a tier below its own."""
    if not arguments.enable_hierarchical_cache:
        raise SettingsError(
            "storage lies below SGLang's host tier, which is off: add --enable-hierarchical-cache and "
            "--hicache-size"
        )
    if arguments.hicache_host_memory_mode == "buffer_only":
        raise SettingsError(
            "--hicache-host-memory-mode=buffer_only keeps nothing in host, where prefetched pages wait: "
            "leave it out"
        )


def refuse_unserved(config: Any, pool: Pool) -> None:
    """Raise SettingsError for a configuration whose pages the tiers can't hold."""
    flags.refuse_unserved(pool.layout, config.dcp_size * config.attn_cp_size)
    if config.should_split_heads:
        raise SettingsError("tp_lcm_size splits pages by heads: leave it out")


def refuse_other_pool(name: str) -> None:
    """Raise SettingsError for a pool of host memory beside the one of plain attention."""
    if name != "kv":
        raise SettingsError(
            f"this model keeps more than plain attention's KV (SGLang calls the rest {name!r}): it isn't "
            "served with tiers below host; leave ssd and shared out"
        )
