"""What makes the bytes of this engine's pages meaningful, and which configurations can be served."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.config import ModelConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

from cache.errors import SettingsError as CacheSettingsError
from cache.keys import Base
from engine_adapters import weights
from engine_adapters.errors import SettingsError

ENGINE = "vllm"


@dataclass(frozen=True)
class Worker(KVConnectorHandshakeMetadata):
    """What the scheduler learns from each worker when it starts."""

    attention: str
    """The backends of its layers, on CPU with the instruction set: it orders a page's inside."""
    page_bytes: int
    """Its part of a page."""


def worker(config: VllmConfig, caches: KVCacheConfig, page_bytes: int) -> Worker:
    """In a worker, once its layers are made."""
    layers = [
        config.compilation_config.static_forward_context[name]
        for group in caches.kv_cache_groups
        for name in group.layer_names
    ]
    names = {f"{layer.get_attn_backend().get_name()}{_instructions(layer)}" for layer in layers}
    return Worker("+".join(sorted(names)), page_bytes)


def base(config: VllmConfig, page_tokens: int, workers: Collection[Worker], memory: Path) -> Base:
    """The namespace's base. Reads all weights at a model's first start; `memory` is a file that remembers.

    Raises SettingsError if the weights aren't there or the workers differ.
    """
    if len(set(workers)) != 1:
        kinds = ", ".join(
            sorted(f"{one.attention} with {one.page_bytes} bytes a page" for one in set(workers))
        )
        raise SettingsError(
            f"the workers' parts of a page aren't alike ({kinds}): choose a layout that splits "
            "the model's layers evenly"
        )
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    kv_dtype = model.dtype if cache.cache_dtype == "auto" else cache.cache_dtype
    quantization = f"/{model.quantization}" if model.quantization else ""
    try:
        folder = weights.folder_of(model.model, model.revision)
        named = weights.named(folder, _architecture(model), memory)
    except (CacheSettingsError, OSError) as error:
        raise SettingsError(f"model: {error}") from error
    return Base(
        weights=named,
        kv_dtype=f"{kv_dtype} of {model.dtype}{quantization}".replace("torch.", ""),
        kv_layout=f"{cache.kv_cache_layout} of {next(iter(workers)).page_bytes} bytes",  # also a draft's
        attention_backend=next(iter(workers)).attention,
        page_tokens=page_tokens,
        engine=ENGINE,
        tp_size=parallel.tensor_parallel_size,
        pp_size=parallel.pipeline_parallel_size,
    )


def _architecture(model: ModelConfig) -> dict[str, Any]:
    """What beside its weights a model's KV depends on."""
    settings: dict[str, Any] = model.hf_config.to_dict()
    if "longrope" in json.dumps(settings, default=str):  # then vLLM chooses the factors by this length
        settings["max_model_len"] = model.max_model_len
    return settings


def adapter(path: str, memory: Path) -> str:
    """A LoRA's name by content. Raises CacheError or OSError if it can't be read."""
    folder = weights.folder_of(path)
    return weights.named(folder, json.loads((folder / "adapter_config.json").read_bytes()), memory)


def refuse_unserved(config: VllmConfig, caches: KVCacheConfig, lasts: bool) -> None:
    """Raise SettingsError for a configuration whose pages the tiers can't hold.

    `lasts` is whether pages outlive the engine.
    """
    cache, parallel = config.cache_config, config.parallel_config
    groups = caches.kv_cache_groups
    if not cache.enable_prefix_caching:
        raise SettingsError("the tiers lie under vLLM's prefix cache: leave out --no-enable-prefix-caching")
    if not cache.prefix_caching_hash_algo.startswith("sha256"):
        raise SettingsError(
            f"--prefix-caching-hash-algo={cache.prefix_caching_hash_algo} is no cryptographic hash: pages of "
            "two prompts could share a name; use sha256 or sha256_cbor"
        )
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        raise SettingsError(
            f"this model's KV cache has other groups than one of full attention ({kinds}); for models with "
            "sliding windows start with --disable-hybrid-kv-cache-manager, others can't be served with tiers"
        )
    if lasts and config.weight_transfer_config is not None:
        raise SettingsError(
            "--weight-transfer-config: pages on ssd or shared would outlive the weights that they are named "
            "after; use host alone"
        )
    if config.kv_transfer_config.kv_connector_extra_config.get("canonical_layout"):
        raise SettingsError("canonical_layout: pages are stored as the workers order them; leave it out")
    if parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1:
        raise SettingsError("context parallelism splits a page's tokens over workers: not served with tiers")
    if parallel.nnodes_within_dp > 1 or parallel.distributed_executor_backend == "ray":
        raise SettingsError(
            "the host tier is one machine's memory: keep an engine's ranks on one node, without ray"
        )


def _instructions(layer: Any) -> str:
    return f"/{layer.isa}" if current_platform.is_cpu() else ""
