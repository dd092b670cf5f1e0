"""What is vLLM's own about the settings of an engine's inside."""

from collections.abc import Mapping
from typing import Any

from engine_adapters.settings import Settings, variables_of
from engine_adapters.settings import load_settings as load

THRESHOLD_VARIABLE = "VLLM_HPKV_TOKEN_THRESHOLD"

ENGINE_KEYS = frozenset(
    {
        "spec_name",
        "spec_module_path",
        "block_size",
        "blocks_per_chunk",
        "offload_prompt_only",
        "self_describing_kv_events",
        "canonical_layout",
    }
)
"""What vLLM 0.32's OffloadingConnector itself reads of `kv_connector_extra_config`."""


def load_settings(extra_config: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Read `kv_connector_extra_config` and the environment. Raises SettingsError."""
    return load(extra_config, environ, threshold_variable=THRESHOLD_VARIABLE, engine_keys=ENGINE_KEYS)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that `load_settings` reads. Raises SettingsError."""
    return {name: environ[name] for name in variables_of(environ, THRESHOLD_VARIABLE)}
